//! The flags that the model server was started with, as its command line tells where it can be seen.

use std::fs;
use std::path::Path;

use crate::proto::Finding;

/// The command line of a process; `None` where it cannot be read.
pub(super) fn command_line(process: u32) -> Option<Vec<String>> {
    let bytes = fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    (!words.is_empty()).then_some(words)
}

/// The last of the flags `yes` and `no` that is there, if any.
fn switched(words: &[String], yes: &[&str], no: &[&str]) -> Option<bool> {
    let known = |word: &&String| yes.contains(&word.as_str()) || no.contains(&word.as_str());
    words.iter().rfind(known).map(|word| yes.contains(&word.as_str()))
}

/// The value after the last of these flags.
fn value<'a>(words: &'a [String], names: &[&str]) -> Option<&'a str> {
    let at = words.iter().rposition(|word| names.contains(&word.as_str()))?;
    words.get(at.saturating_add(1)).map(String::as_str)
}

/// What is said of a server that was started so.
pub(super) fn judge(words: &[String], slots: u64, slot_dir: Option<&Path>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut bad = |what: String, remedy: &str| findings.push(Finding::bad(what, remedy));
    if value(words, &["--cache-ram", "-cram"]) != Some("0") {
        let what = "it was not started with --cache-ram 0: conversations are moved out of the slot into RAM, where a \
                    request to the slot does not look for them, and much memory is used";
        bad(what.to_owned(), "--cache-ram 0");
    }
    if switched(words, &["--context-shift"], &["--no-context-shift"]) == Some(true) {
        let what = "--context-shift: where the context is full, the beginning of the conversation is dropped in silence";
        bad(what.to_owned(), "--no-context-shift");
    }
    if let Some(size) = value(words, &["--cache-reuse"]).filter(|size| *size != "0") {
        let what =
            format!("--cache-reuse {size}: the cache then holds tokens that were shifted, not evaluated");
        bad(what, "--cache-reuse 0");
    }
    if let Some(seconds) =
        value(words, &["--sleep-idle-seconds"]).filter(|s| !s.starts_with('-') && *s != "0")
    {
        let what =
            format!("--sleep-idle-seconds {seconds}: it then unloads the model, and with it every cache");
        bad(what, "leave out --sleep-idle-seconds");
    }
    if slots > 1 && switched(words, &["--kv-unified", "-kvu"], &["--no-kv-unified", "-no-kvu"]) == Some(true)
    {
        let what = "--kv-unified: its slots share one cache, and one is emptied for another";
        bad(what.to_owned(), "--no-kv-unified");
    }
    let router = ["--models-dir", "--models-preset"];
    if let Some(flag) = words.iter().find(|word| router.contains(&word.as_str())) {
        bad(
            format!("{flag}: it loads and unloads several models, and their caches with them"),
            "-m MODEL.gguf",
        );
    }
    if switched(words, &["--prefill-assistant"], &["--no-prefill-assistant"]) != Some(false) {
        let what =
            "it was not started with --no-prefill-assistant: it may change what the chat template renders";
        findings.push(Finding::warn(what, "--no-prefill-assistant"));
    }
    findings.extend(saves_elsewhere(words, slot_dir));
    if findings.is_empty() {
        findings.push(Finding::ok("the flags on its command line keep the promise"));
    }
    findings
}

/// Whether the server saves its slots to another folder than the one that is configured.
fn saves_elsewhere(words: &[String], slot_dir: Option<&Path>) -> Option<Finding> {
    let ours = slot_dir?;
    let theirs = Path::new(value(words, &["--slot-save-path"])?);
    // the server may see the file system otherwise: then the saved file itself tells
    let (a, b) = (ours.canonicalize().ok()?, theirs.is_absolute().then(|| theirs.canonicalize().ok())??);
    (a != b).then(|| {
        let what = format!(
            "it saves its slots to {}, and [model] slot_dir is {}: what it saves is not found",
            theirs.display(),
            ours.display()
        );
        Finding::bad(what, "make them the same folder")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Level;

    const GOOD: &str =
        "llama-server -m x.gguf --cache-ram 0 --no-context-shift --cache-reuse 0 --no-prefill-assistant";

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn each_flag_that_breaks_the_promise_is_told() {
        let good = judge(&words(GOOD), 1, None);
        assert!(good.len() == 1 && good[0].level == Level::Ok, "{good:?}");
        let cases = [
            ("--cache-ram 8192", "--cache-ram 0"),
            ("--context-shift", "--no-context-shift"),
            ("--cache-reuse 256", "--cache-reuse 0"),
            ("--sleep-idle-seconds 60", "leave out --sleep-idle-seconds"),
            ("--models-dir /m", "-m MODEL.gguf"),
            ("--prefill-assistant", "--no-prefill-assistant"),
        ];
        for (flag, remedy) in cases {
            let found = judge(&words(&format!("{GOOD} {flag}")), 1, None);
            assert!(found.len() == 1 && found[0].remedy == remedy, "{flag}: {found:?}");
            assert!(found[0].level > Level::Ok, "{flag}");
        }
        let unified = words(&format!("{GOOD} -kvu"));
        assert_eq!(judge(&unified, 4, None)[0].remedy, "--no-kv-unified");
        assert_eq!(judge(&unified, 1, None)[0].level, Level::Ok, "one slot shares with none");
        assert_eq!(judge(&words("llama-server -m x"), 1, None).len(), 2, "the defaults: {:?}", good);
    }

    #[test]
    fn another_folder_for_slots_is_told() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |folder: &Path| words(&format!("{GOOD} --slot-save-path {}", folder.display()));
        assert_eq!(judge(&at(a.path()), 1, Some(b.path()))[0].level, Level::Bad);
        assert_eq!(judge(&at(a.path()), 1, Some(a.path()))[0].level, Level::Ok);
        assert_eq!(judge(&at(a.path()), 1, None)[0].level, Level::Ok);
    }
}
