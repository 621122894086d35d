//! Something else in the place of a file or a directory of the store: nothing waits for it, follows it or changes
//! it, and what is told names it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod store_support;

use std::fs;
use std::future::Future;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use boxmaker::daemon::maintenance;
use boxmaker::proto::*;
use boxmaker::store::*;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use store_support::*;

/// Whoever waits for the other end of a pipe, or reads a device to its end, waits for ever.
async fn at_once<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("it waits for what never comes")
}

/// Puts something else in the place of `path`, whose own is moved to `aside`; how it is called.
type Put = fn(path: &Path, aside: &Path) -> Option<&'static str>;

const OTHERS: [(&str, Put); 5] = [
    ("pipe", |path, _| mkfifo(path, Mode::S_IRWXU).ok().map(|()| "a pipe")),
    ("directory", |path, _| fs::create_dir(path).ok().map(|()| "a directory")),
    ("symlink", |path, aside| symlink(aside, path).ok().map(|()| "a symlink")),
    ("socket", |path, _| UnixListener::bind(path).ok().map(|_| "a socket")),
    // without the right to make one there is none
    ("device", |path, _| mknod(path, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).ok().map(|()| "a device")),
];

/// Each thing in the place of `path`, one after the other.
fn each_other(path: &Path, mut check: impl FnMut(&str)) {
    let aside = path.with_extension("ASIDE");
    let mut seen = 0;
    for (name, put) in OTHERS {
        fs::rename(path, &aside).unwrap();
        let Some(called) = put(path, &aside) else {
            assert_eq!(name, "device", "{}", path.display());
            fs::rename(&aside, path).unwrap();
            continue;
        };
        check(called);
        if path.symlink_metadata().unwrap().is_dir() {
            fs::remove_dir(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
        fs::rename(&aside, path).unwrap();
        seen += 1;
    }
    assert!(seen >= 4);
}

async fn two_sessions(home: &Path) -> Vec<LogRecord> {
    let mut session = Session::create(home, id("a"), baseline(), 0).await.unwrap();
    session.append(user(1, "kept")).await.unwrap();
    Session::create(home, id("b"), baseline(), 0).await.unwrap();
    session.records().to_vec()
}

/// What must be true while something else is in the place of a part of session `a`.
async fn refused(home: &Path, called: &str, path: &Path) {
    let catalog = Catalog::new(home.to_owned(), OpenOptions::default());
    let shown = path.display().to_string();
    let says = |error: &SessionError| {
        let told = error.to_string();
        assert!(told.contains(&shown) && told.contains(called), "{told}");
        assert!(told.contains("left alone"), "{told}");
        assert_eq!(error.code(), ErrorCode::Damaged, "{told}");
    };
    says(&at_once(catalog.open(&id("a"))).await.unwrap_err());
    let info = at_once(catalog.info(&id("a"))).await.unwrap();
    assert_eq!(info.state, SessionState::Damaged);
    assert!(info.reason.unwrap().contains(called));
    assert_eq!(at_once(catalog.list()).await.unwrap().len(), 2, "it hides no other session");
    says(&at_once(catalog.records(&id("a"), 0, None, 1 << 20)).await.unwrap_err());
    match at_once(catalog.repair(&id("a"))).await {
        Ok(Remedy::Refused(error)) | Err(error) => says(&error),
        other => panic!("{called} in the place of {shown} was repaired: {other:?}"),
    }
    says(&at_once(catalog.recover(&id("a"), Some(id("c")))).await.unwrap_err());
    at_once(catalog.open(&id("b"))).await.expect("the other session");
}

#[test]
fn in_the_place_of_a_log_or_a_baseline() {
    let home = home();
    let records = uring(two_sessions(home.path()));
    for name in ["0.jsonl", "0.baseline.json"] {
        let path = home.path().join("sessions/a").join(name);
        each_other(&path, |called| {
            if (name, called) == ("0.jsonl", "a directory") {
                // a directory is no log, and there is none beside it
                let error = uring(at_once(Session::open(home.path(), &id("a")))).unwrap_err();
                assert!(matches!(error, SessionError::NotFound(_)), "{error}");
                return;
            }
            uring(refused(home.path(), called, &path));
            assert_eq!(maintenance::verify(home.path(), Some("a")), 4);
            assert_eq!(maintenance::repair(home.path(), "a", true), 4);
        });
    }
    uring(async {
        let session = at_once(Session::open(home.path(), &id("a"))).await.unwrap();
        assert_eq!(session.records(), records);
    });
}

#[test]
fn in_the_place_of_a_session() {
    let home = home();
    uring(two_sessions(home.path()));
    let path = home.path().join("sessions/a");
    each_other(&path, |called| {
        if called == "a directory" {
            return;
        }
        uring(refused(home.path(), called, &path));
        assert_eq!(maintenance::verify(home.path(), Some("a")), 4);
        assert_eq!(maintenance::verify(home.path(), None), 4);
        assert_eq!(maintenance::repair(home.path(), "a", true), 4);
    });
}

#[test]
fn in_the_place_of_a_saved_slot() {
    let dir = home();
    let path = dir.path().join("a.kv");
    // magic, version, packed words, -1, 1, number of ids; and one id
    let words = [0x6767_7371u32, 4, 0, u32::MAX, 1, 1, 42];
    fs::write(&path, words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let files = SlotFiles::new(dir.path().to_owned());
    let read = || uring(at_once(files.read_ids("a.kv")));
    assert_eq!(read().unwrap(), [42]);
    each_other(&path, |called| {
        let error = read().unwrap_err().to_string();
        assert!(error.contains("a.kv") && error.contains(called), "{error}");
    });
    // a manifest, and who holds the slot: what cannot be read counts for nothing
    for name in ["a.0123456789abcdef.json", "slot-0.holder"] {
        let path = dir.path().join(name);
        fs::write(&path, "a").unwrap();
        each_other(&path, |_| {
            assert_eq!(uring(at_once(files.find(&id("a"), Epoch(0)))).unwrap(), None);
            assert_eq!(uring(at_once(files.remembered(0))), None);
        });
    }
    assert_eq!(read().unwrap(), [42]);
}
