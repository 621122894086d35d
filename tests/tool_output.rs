//! What command tools print: too much, too long, no text. Each is a real process.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::string_slice,
    clippy::indexing_slicing
)]

mod tool_support;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use boxmaker::proto::ToolOutcome;
use tool_support::{Place, call, memory};

#[test]
fn fifty_megabytes_are_kept_in_a_file_and_not_in_memory() {
    tokio_uring::start(async {
        let place = Place::new();
        const TOTAL: u64 = 50_000_000;
        // the first call also pays for code that is loaded and buffers that are made once
        call(place.sh("seq 20000"), place.context(10)).await;
        for (name, spec) in [
            ("lines", place.sh("yes 0123456 | head -c 50000000")),
            ("one line", place.sh("head -c 50000000 /dev/zero | tr '\\0' x")),
        ] {
            let before = memory("VmHWM");
            let reply = call(spec, place.context(120)).await;
            let grown = memory("VmHWM") - before;
            assert_eq!(reply.outcome, ToolOutcome::Ok, "{name}");
            assert!(grown < 8_000_000, "{name}: {grown} bytes");
            assert!(reply.content.len() < 4096 + 500, "{name}: {}", reply.content.len());
            let (text, note) = reply.content.rsplit_once("\n[output: ").unwrap();
            assert!(text.contains(&format!("[… {} bytes left out …]", reply.truncated_bytes)));
            assert_eq!(reply.truncated_bytes, TOTAL - 4096);
            let path = note.split("all are in ").nth(1).unwrap().trim_end_matches(']');
            let meta = fs::metadata(path).unwrap();
            assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (TOTAL, 0o600));
            let file = fs::read_to_string(path).unwrap();
            assert!(file.starts_with(&text[..2048]), "{name}");
            assert!(file.trim_end().ends_with(&text[text.len() - 2000..]), "{name}");
        }
    });
}

#[test]
fn output_that_never_ends_is_cut_off_and_its_file_has_a_limit() {
    tokio_uring::start(async {
        let place = Place::new();
        let mut spec = place.sh("yes");
        spec.spill_bytes = Some(100_000);
        let reply = call(spec, place.context(1)).await;
        assert_eq!(reply.outcome, ToolOutcome::TimedOut);
        let path = place.path("spill/call-1.out");
        assert_eq!(fs::metadata(&path).unwrap().len(), 100_000);
        assert!(reply.content.contains(&format!("the first 100000 are in {}", path.display())));
        // what had been shown before it became too long is in the file too
        let reply = call(place.sh("echo first; sleep 0.1; seq 10000"), place.context(10)).await;
        assert_eq!(reply.truncated_bytes, 48_900 - 4096);
        let file = fs::read_to_string(place.path("spill/call-1-2.out")).unwrap();
        assert!(file.starts_with("first\n1\n") && file.ends_with("\n10000\n") && file.len() == 48_900);
        // without a place to keep it, it is said so
        let mut context = place.context(10);
        context.spill = None;
        let reply = call(place.sh("seq 10000"), context).await;
        assert!(
            reply.content.ends_with("[output: 44798 of 48894 bytes left out; they are not kept]"),
            "{}",
            reply.content
        );
    });
}

#[test]
fn a_full_disk_loses_the_rest_of_the_file_and_nothing_else() {
    tokio_uring::start(async {
        let place = Place::new();
        let mut context = place.context(10);
        if let Some(spill) = context.spill.as_mut() {
            spill.dir = place.path("plain");
        }
        fs::write(place.path("plain"), "not a folder").unwrap();
        let reply = call(place.sh("seq 10000"), context).await;
        assert_eq!(reply.outcome, ToolOutcome::Ok);
        assert!(reply.content.contains("bytes left out; they are not kept: "), "{}", reply.content);
    });
}

#[test]
fn odd_bytes_are_shown_and_said() {
    tokio_uring::start(async {
        let place = Place::new();
        let reply = call(place.sh(r"printf 'a\0b'"), place.context(10)).await;
        assert_eq!(reply.content, "a\u{2400}b\n[output: 1 NUL bytes are shown as \u{2400}]");
        let reply = call(place.sh(r"printf 'x\377\376y\n'"), place.context(10)).await;
        assert_eq!(
            reply.content,
            "x\u{fffd}\u{fffd}y\n[output: 2 bytes are not UTF-8 and shown as \u{fffd}]"
        );
        // a character in two writes, and so in two reads
        let reply = call(place.sh(r"printf '\342\202'; sleep 0.2; printf '\254'"), place.context(10)).await;
        assert_eq!(reply.content, "€");
        // a terminal's escapes are data; the client makes them harmless
        let reply = call(place.sh(r"printf '\033[2J\033]0;x\007'"), place.context(10)).await;
        assert_eq!(reply.content, "\u{1b}[2J\u{1b}]0;x\u{7}");
        let reply = call(place.sh("head -c 1000000 /dev/urandom"), place.context(10)).await;
        assert!(reply.content.len() < 4096 + 1000);
    });
}
