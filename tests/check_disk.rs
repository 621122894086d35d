//! `loopd check` on real file systems: each kind, option and shortage that breaks the promise is found where a home
//! or the folder of saved slots is on it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs, reason = "tests")]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::daemon::loopd;
use support::mounted::{Mounted, run};
use support::skip;

/// Words that a finding about a disk has, and whether it is BAD; none for a disk that is as it should be.
type Words = Option<(&'static str, &'static str)>;

/// A kind of disk: how it is made, how it is mounted, and what is said of a home on it.
struct Kind {
    make: &'static [&'static str],
    options: &'static str,
    says: Words,
}

const NO_JOURNAL: &[&str] = &["mkfs.ext4", "-q", "-F", "-O", "^has_journal"];
const PLAIN: &[&str] = &["mkfs.ext4", "-q", "-F", "-O", "has_journal,^fast_commit"];
const FAST_COMMIT: &[&str] = &["mkfs.ext4", "-q", "-F", "-O", "has_journal,fast_commit"];

const KINDS: [Kind; 8] = [
    Kind { make: PLAIN, options: "loop", says: None },
    Kind { make: &["mkfs.xfs", "-q", "-f"], options: "loop", says: None },
    Kind { make: PLAIN, options: "loop,nobarrier", says: Some(("BAD ", "a sync does not reach the medium")) },
    Kind { make: PLAIN, options: "loop,data=writeback", says: Some(("BAD ", "data=writeback")) },
    Kind { make: NO_JOURNAL, options: "loop", says: Some(("BAD ", "ext4 without a journal")) },
    Kind { make: FAST_COMMIT, options: "loop", says: Some(("BAD ", "ext4 with fast_commit")) },
    Kind { make: PLAIN, options: "loop,ro", says: Some(("BAD ", "mounted read-only")) },
    Kind { make: &["mkfs.ext2", "-q", "-F"], options: "loop", says: Some(("BAD ", "a power cut")) },
];

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("check-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A sparse disk of so many megabytes.
fn image(dir: &Path, make: &[&str], megabytes: u64) -> Result<PathBuf, String> {
    let image = dir.join("image");
    File::create(&image).and_then(|file| file.set_len(megabytes << 20)).map_err(|e| e.to_string())?;
    run(Command::new(make[0]).args(&make[1..]).arg(&image)).map_err(|why| format!("{}: {why}", make[0]))?;
    Ok(image)
}

/// The lines of `loopd check` that speak of this folder; its model server is not there.
fn said_of(what: &Path, home: &Path, slot_dir: Option<&Path>) -> Vec<String> {
    let dir = folder();
    let mut config =
        format!("[daemon]\nhome = {home:?}\n[model]\nurl = \"unix:{}/none\"\n", dir.path().display());
    if let Some(slots) = slot_dir {
        config += &format!("slot_dir = {slots:?}\n");
    }
    fs::write(dir.path().join("loopd.toml"), config).unwrap();
    let output = loopd(dir.path(), "check", &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "the server is not there: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let of_it = |line: &&str| line.starts_with("# ") && line.contains(&*what.to_string_lossy());
    text.lines().filter(of_it).filter_map(|line| line.strip_prefix("# ").map(str::to_owned)).collect()
}

/// Changes the names and contents of files, durably: only then ext4 tells that it uses fast commits.
fn change(home: &Path) {
    for n in 0..3 {
        let path = home.join(format!("f{n}"));
        fs::write(&path, "x").unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        fs::rename(&path, home.join(format!("g{n}"))).unwrap();
        File::open(home).unwrap().sync_all().unwrap();
    }
}

#[test]
fn what_a_disk_or_its_options_break_is_found() {
    for Kind { make, options, says } in KINDS {
        let dir = folder();
        let at = dir.path().join("disk");
        let mounted =
            image(dir.path(), make, 600).and_then(|image| Mounted::image_with(options, &image, &at));
        let disk = match mounted {
            Ok(disk) => disk,
            Err(why) => {
                return skip(&format!("a disk cannot be made and mounted here ({make:?}, {options}): {why}"));
            }
        };
        let home = at.join("home");
        if !options.contains("ro") {
            fs::create_dir(&home).unwrap();
            fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
            change(&home);
        }
        let lines = said_of(&home, &home, None);
        let complaints: Vec<&String> = lines.iter().filter(|line| !line.starts_with("ok  ")).collect();
        match says {
            None => assert!(complaints.is_empty() && !lines.is_empty(), "{make:?} {options}: {lines:#?}"),
            Some((level, words)) => {
                let found = complaints.iter().any(|line| line.starts_with(level) && line.contains(words));
                assert!(found && complaints.len() == 1, "{make:?} {options}: {lines:#?}");
            }
        }
        drop(disk);
    }
}

#[test]
fn a_home_or_a_folder_of_slots_with_little_room_is_found() {
    let dir = folder();
    let at = dir.path().join("disk");
    // few files, and then few bytes
    let make = &[PLAIN, &["-N", "900"]].concat();
    let disk = match image(dir.path(), make, 600).and_then(|image| Mounted::image(&image, &at)) {
        Ok(disk) => disk,
        Err(why) => return skip(&format!("a disk cannot be made and mounted here: {why}")),
    };
    let lines = said_of(&at, &at, None);
    assert!(lines.iter().any(|line| line.starts_with("warn") && line.contains("more files")), "{lines:#?}");
    let ballast = Command::new("fallocate").args(["-l", "400M"]).arg(at.join("ballast")).status().unwrap();
    assert!(ballast.success());
    let lines = said_of(&at, &at, None);
    assert!(
        lines.iter().any(|line| line.starts_with("warn") && line.contains("MiB free; less than 256 MiB")),
        "{lines:#?}"
    );
    // the same disk for saved slots
    let home = dir.path().join("home");
    let lines = said_of(&at, &home, Some(&at));
    assert!(lines.iter().any(|line| line.starts_with("warn") && line.contains("MiB free")), "{lines:#?}");
    drop(disk);
}

#[test]
fn an_overlay_is_found() {
    let dir = folder();
    let [lower, upper, work, at] = ["lower", "upper", "work", "at"].map(|name| dir.path().join(name));
    for made in [&lower, &upper, &work, &at] {
        fs::create_dir(made).unwrap();
    }
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let disk = match Mounted::overlay(&options, &at) {
        Ok(disk) => disk,
        Err(why) => return skip(&format!("no overlay can be mounted here: {why}")),
    };
    let lines = said_of(&at, &at, None);
    assert!(lines.iter().any(|line| line.starts_with("warn") && line.contains("an overlay")), "{lines:#?}");
    drop(disk);
}
