//! A disk that fails once and is well again: the kernel has forgotten by then what it could not write, and the next
//! `fdatasync` says that all is well.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use boxmaker::proto::{ErrorCode, Request, SessionId, SessionState};
use boxmaker::store::{Catalog, OpenOptions, Remedy, SessionError, Uring};

use crate::store_support::{baseline, id, turn, user};
use crate::support::bench::Bench;
use crate::support::mounted::{Mounted, run};
use crate::support::skip;
use crate::support::talk::told;

/// A journaled ext4 on a disk whose free blocks cannot be written while it is ill: they are holes in the
/// disk's file, which is on a tmpfs that is full then. What is in use, the journal included, stays writable.
struct Ill {
    disk: Mounted,
    // after the disk: the other way round it would be in use
    below: Mounted,
    image: PathBuf,
    filler: PathBuf,
}

impl Ill {
    fn new(dir: &Path, at: &Path) -> Result<Self, String> {
        let below_at = dir.join("below");
        let below = Mounted::tmpfs("size=40m", &below_at)?;
        let (image, filler) = (below_at.join("image"), below_at.join("filler"));
        File::create(&image).and_then(|file| file.set_len(32 << 20)).map_err(|e| e.to_string())?;
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096", "-E", options]).arg(&image))?;
        // each block gets a page of its own, those that are zero too
        let bytes = fs::read(&image).map_err(|e| e.to_string())?;
        fs::write(&image, bytes).map_err(|e| e.to_string())?;
        let disk = Mounted::image(&image, at)?;
        // or small files would go on in blocks that ext4 has put by for them, and that are no holes
        let device = run(Command::new("losetup").args(["-n", "-O", "NAME", "-j"]).arg(&image))?;
        let knobs = Path::new("/sys/fs/ext4").join(device.trim_start_matches("/dev/"));
        fs::write(knobs.join("mb_group_prealloc"), "1").map_err(|e| e.to_string())?;
        fs::set_permissions(at, fs::Permissions::from_mode(0o700)).map_err(|e| e.to_string())?;
        Ok(Self { disk, below, image, filler })
    }

    fn falls_ill(&self, at: &Path, log: &Path) {
        // what is set aside for the log would be no holes either
        let log = File::options().write(true).open(log).unwrap();
        log.set_len(log.metadata().unwrap().len()).unwrap();
        run(Command::new("sync").arg("-f").arg(at)).unwrap();
        run(Command::new("fstrim").arg(at)).unwrap();
        assert!(fs::write(&self.filler, vec![0; 64 << 20]).is_err(), "the tmpfs is not full");
    }

    fn is_well_again(&self, log: &Path) {
        fs::remove_file(&self.filler).unwrap();
        // this is what nobody may believe
        let log = File::options().write(true).open(log).unwrap();
        assert!(log.sync_data().is_ok(), "the next sync still tells of the failed one");
    }

    /// The disk as it is after the machine was switched off and on.
    fn restarted(self, at: &Path) -> Self {
        let Self { disk, below, image, filler } = self;
        drop(disk);
        let disk = Mounted::image(&image, at).unwrap();
        Self { disk, below, image, filler }
    }
}

fn log_of(home: &Path, id: &SessionId) -> PathBuf {
    home.join("sessions").join(id.as_str()).join("0.jsonl")
}

#[test]
fn a_store_whose_disk_failed_once_writes_nothing_more_until_it_is_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let ill = match Ill::new(dir.path(), &home) {
        Ok(ill) => ill,
        Err(reason) => return skip(&format!("no ext4 can be mounted here: {reason}")),
    };
    let catalog = Catalog::new(home.clone(), OpenOptions::default());
    let log = log_of(&home, &id("a"));
    let whole = Uring::runtime().unwrap().block_on(async {
        let mut session = catalog.create(Some(id("a")), baseline(), 0, None).await.unwrap();
        for append in turn(1, "Hello") {
            session.append_all(append).await.unwrap();
        }
        let (told, before) = (session.records().to_vec(), fs::read(&log).unwrap());
        ill.falls_ill(&home, &log);
        let error = session.append(user(2, &"perhaps ".repeat(4000))).await.unwrap_err();
        println!("told: {error}");
        assert!(error.unknown() && session.is_poisoned(), "{error}");
        assert_eq!(session.records(), told);
        ill.is_well_again(&log);
        let after = fs::read(&log).unwrap();
        for _ in 0..3 {
            let error = session.append(user(2, "again")).await.unwrap_err();
            assert!(matches!(error, SessionError::Poisoned(_)), "{error}");
        }
        assert_eq!(fs::read(&log).unwrap(), after, "it wrote on");
        drop(session);

        // the page cache shows the message whole; the disk has zeros there
        match catalog.open(&id("a")).await {
            Ok((session, _)) => assert_eq!(session.records(), told),
            Err(error) => {
                assert!(matches!(error, SessionError::Torn { .. }), "{error}");
                let remedy = catalog.repair(&id("a")).await.unwrap();
                assert!(matches!(remedy, Remedy::Cut(_)), "{remedy:?}");
            }
        }
        let (mut session, _) = catalog.open(&id("a")).await.unwrap();
        assert_eq!(session.records(), told);
        for append in turn(2, &"on we go ".repeat(2000)) {
            session.append_all(append).await.unwrap();
        }
        let whole = session.records().to_vec();
        session.close().await.unwrap();
        assert!(fs::read(&log).unwrap().starts_with(&before));
        whole
    });
    let _ill = ill.restarted(&home);
    Uring::runtime().unwrap().block_on(async {
        let (session, _) = catalog.open(&id("a")).await.unwrap();
        assert_eq!(session.records(), whole, "what was told after the disk was well is gone");
    });
}

#[test]
fn a_disk_that_failed_once_is_told_to_the_client_and_gone_past_without_a_restart() {
    let mut bench = Bench::prepare("", |_| String::new());
    bench.gone = true;
    let home = bench.home().to_owned();
    let ill = match Ill::new(bench.dir(), &home) {
        Ok(ill) => ill,
        Err(reason) => return skip(&format!("no ext4 can be mounted here: {reason}")),
    };
    bench.start_daemon();
    let mut talk = bench.talk();
    let session = talk.create();
    talk.turn(&session, "Hello");
    let before = fs::read(log_of(&home, &session)).unwrap();
    ill.falls_ill(&home, &log_of(&home, &session));
    let text = "perhaps ".repeat(4000);
    let error = talk.ask(Request::Send { session: session.clone(), text }).unwrap_err();
    println!("told: {error}");
    assert_eq!(error.code, ErrorCode::Disk, "{error}");
    assert!(error.message.contains("0.jsonl") && error.message.contains("unknown"), "{error}");
    ill.is_well_again(&log_of(&home, &session));

    // the next request opens the session anew, from the disk
    match talk.ask(Request::Open { session: session.clone() }) {
        Ok(_) => {}
        Err(error) => {
            println!("told again: {error}");
            assert_eq!(error.code, ErrorCode::Damaged, "{error}");
            assert!(error.message.contains("loopd repair"), "{error}");
            println!("{}", bench.repair(&session));
        }
    }
    talk.attach(&session, None);
    assert_eq!(told(&talk.turn(&session, "We go on")).last().unwrap(), "turn_end done");
    assert_eq!(talk.info(&session).state, SessionState::Ok);
    drop(talk);
    bench.kill_daemon();
    let ill = ill.restarted(&home);
    assert!(fs::read(log_of(&home, &session)).unwrap().starts_with(&before), "what was told is gone");
    let log = bench.log(&session);
    assert_eq!(
        log[log.len() - 4..],
        ["user 2: We go on", "assistant 2 stop: ok", "usage 2", "turn_end 2 done"]
    );
    drop(ill);
}
