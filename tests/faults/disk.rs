//! Disks that fail, vanish behind their file system, or stand still.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use boxmaker::proto::{ErrorCode, EventKind, Incoming, Reply, Request, SessionState};

use boxmaker::store::{Access, Storage as _, StorageFile as _, Uring};

use crate::support::bench::Bench;
use crate::support::daemon::Daemon;
use crate::support::mounted::{self, Mounted};
use crate::support::scripted_server::Script;
use crate::support::talk::{told, why};
use crate::support::{skip, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);

/// What is mounted; the newest goes first.
struct Mounts(Vec<Mounted>);

impl Drop for Mounts {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    mounted::run(Command::new(program).args(arguments))
}

/// An ext4 as the daemon's home, in a sparse file on a tmpfs of 24 MB: what fills the tmpfs makes the disk fail.
struct OnExt4 {
    bench: Bench,
    mounts: Mounts,
    below: PathBuf,
}

fn on_ext4() -> Result<OnExt4, String> {
    let mut bench = Bench::prepare("", |_| String::new());
    // the home goes before the bench does
    bench.gone = true;
    let (below, home) = (bench.dir().join("below"), bench.home().to_owned());
    let mut mounts = Mounts(vec![Mounted::tmpfs("size=24m", &below)?]);
    let image = below.join("image");
    fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).unwrap();
    run("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,nodiscard", image.to_str().unwrap()])?;
    mounts.0.push(Mounted::image(&image, &home)?);
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    bench.start_daemon();
    Ok(OnExt4 { bench, mounts, below })
}

#[test]
fn a_disk_that_fails_below_its_file_system() {
    let OnExt4 { mut bench, mut mounts, below } = match on_ext4() {
        Ok(ready) => ready,
        Err(reason) => return skip(&format!("no ext4 can be mounted here: {reason}")),
    };
    let mut talk = bench.talk();
    let (id, other) = (talk.create(), talk.create());
    talk.turn(&id, "Hello");
    talk.turn(&other, "Hello there");
    run("sync", &["-f", bench.home().to_str().unwrap()]).unwrap();
    let before = bench.log_bytes(&id);

    // nothing more can be written below: EIO at the sync, and then a file system that is read-only
    assert!(fs::write(below.join("filler"), vec![0; 32 << 20]).is_err());
    let mut refused = None;
    for n in 0..60 {
        // one token with much text
        bench.server.push(Script::new().progress().token(&"y".repeat(300_000), 3 + 0x79).eog());
        match talk.ask(Request::Send { session: id.clone(), text: format!("More {n}") }) {
            Err(error) => {
                refused = Some(error);
                break;
            }
            Ok(_) => {
                let events = talk.until_end(&id);
                let end = told(&events).pop().unwrap();
                if !end.ends_with("done") {
                    println!("told after {n} turns: {end}: {}", why(&events));
                    assert!(why(&events).contains("0.jsonl"), "{}", why(&events));
                }
            }
        }
    }
    let error = refused.expect("the disk failed, and nobody was told");
    println!("told: {error}");
    assert!(error.message.contains("0.jsonl"), "the file is not named: {error}");
    assert!(matches!(error.code, ErrorCode::Disk | ErrorCode::Poisoned), "{error}");

    // it is not tried again, what can be read is read, and the daemon is alive
    for session in [&id, &other] {
        let again = talk.ask(Request::Send { session: session.clone(), text: "Again".to_owned() });
        let again = again.expect_err("a disk that fails took a message");
        println!("told again: {again}");
        assert!(matches!(again.code, ErrorCode::Disk | ErrorCode::Poisoned), "{again}");
    }
    let listed = talk.ask(Request::List {}).expect("sessions are listed");
    assert!(matches!(listed, Reply::Sessions { ref sessions } if sessions.len() == 2), "{listed:?}");
    assert!(bench.log_bytes(&id).starts_with(&before));

    // the disk is mended: whatever was told is there, and both sessions go on
    drop(talk);
    bench.kill_daemon();
    drop(mounts.0.pop());
    fs::remove_file(below.join("filler")).unwrap();
    let image = below.join("image");
    let mended = Command::new("e2fsck").arg("-fy").arg(&image).output().unwrap();
    println!("{}", String::from_utf8_lossy(&mended.stdout));
    mounts.0.push(Mounted::image(&image, bench.home()).unwrap());
    assert!(bench.log_bytes(&id).starts_with(&before), "what was told is gone");
    bench.start_daemon();
    let mut talk = bench.talk();
    for session in [&id, &other] {
        if talk.info(session).state == SessionState::Damaged {
            println!("{}", bench.repair(session));
        }
        talk.attach(session, None);
        assert_eq!(told(&talk.turn(session, "We go on")).last().unwrap(), "turn_end done");
    }
    bench.kill_daemon();
}

/// Makes the ext4 find itself broken: it takes nothing more, not even a sync.
fn breaks(below: &Path, home: &Path) -> Result<(), String> {
    let device = run("losetup", &["-n", "-O", "NAME", "-j", below.join("image").to_str().unwrap()])?;
    let knobs = Path::new("/sys/fs/ext4").join(device.trim_start_matches("/dev/"));
    run("mount", &["-o", "remount,errors=remount-ro", home.to_str().unwrap()])?;
    fs::write(knobs.join("trigger_fs_error"), "told by a test").map_err(|e| e.to_string())
}

/// io_uring opens what the kernel has in its cache of names without waiting, whatever the flags; what has to be
/// looked up on the disk it opens as any other process does.
#[test]
fn a_pipe_whose_name_is_not_in_the_kernels_cache() {
    let OnExt4 { mut bench, mut mounts, below } = match on_ext4() {
        Ok(ready) => ready,
        Err(reason) => return skip(&format!("no ext4 can be mounted here: {reason}")),
    };
    let mut talk = bench.talk();
    let id = talk.create();
    drop(talk);
    bench.kill_daemon();
    let session = bench.home().join("sessions").join(id.as_str());
    for name in ["0.baseline.json", "0.jsonl"] {
        fs::rename(session.join(name), session.join("aside")).unwrap();
        nix::unistd::mkfifo(&session.join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
        drop(mounts.0.pop());
        mounts.0.push(Mounted::image(&below.join("image"), bench.home()).unwrap());
        bench.start_daemon();
        let mut talk = bench.talk();
        let error = talk.ask(Request::Open { session: id.clone() }).unwrap_err();
        assert!(error.message.contains(name) && error.message.contains("a pipe"), "{error}");
        drop(talk);
        bench.kill_daemon();
        fs::remove_file(session.join(name)).unwrap();
        fs::rename(session.join("aside"), session.join(name)).unwrap();
    }
    drop(mounts);
}

/// That a sync was asked of the kernel shows only where it fails.
#[test]
fn every_kind_of_sync_reaches_the_disk() {
    let OnExt4 { mut bench, mounts, below } = match on_ext4() {
        Ok(ready) => ready,
        Err(reason) => return skip(&format!("no ext4 can be mounted here: {reason}")),
    };
    bench.kill_daemon();
    let home = bench.home().to_owned();
    Uring::runtime().unwrap().block_on(async {
        let path = home.join("file");
        let file = Uring.open(&path, Access::New).await.unwrap();
        let appended = file.append(0, b"a line\n".to_vec()).await;
        assert!(appended.written.is_ok() && appended.synced.is_ok(), "{appended:?}");
        assert!(file.sync().await.is_ok() && file.refresh().await.is_ok());
        assert!(Uring.sync_dir(&home).await.is_ok());
        if let Err(reason) = breaks(&below, &home) {
            return skip(&format!("no ext4 can be broken here: {reason}"));
        }
        assert!(file.sync().await.is_err(), "a file's sync was not asked for");
        assert!(file.refresh().await.is_err(), "a refreshed file was not synced");
        assert!(Uring.sync_dir(&home).await.is_err(), "a directory's sync was not asked for");
    });
    drop(mounts);
}

#[test]
fn a_file_system_that_turned_read_only_while_its_logs_were_open() {
    let OnExt4 { mut bench, mounts, below } = match on_ext4() {
        Ok(ready) => ready,
        Err(reason) => return skip(&format!("no ext4 can be mounted here: {reason}")),
    };
    let mut talk = bench.talk();
    let id = talk.create();
    talk.turn(&id, "Hello");
    let before = bench.log_bytes(&id);
    if let Err(reason) = breaks(&below, bench.home()) {
        return skip(&format!("no ext4 can be broken here: {reason}"));
    }
    for text in ["More", "And more"] {
        let error = talk.ask(Request::Send { session: id.clone(), text: text.to_owned() }).unwrap_err();
        println!("told: {error}");
        assert_eq!(error.code, ErrorCode::Disk, "{error}");
        assert!(
            error.message.contains("0.jsonl") && error.message.contains("nothing was written"),
            "{error}"
        );
        assert!(!error.message.contains("unknown"), "it is known: {error}");
    }
    assert_eq!(talk.usage(&id).len(), 1, "it can be read");
    assert_eq!(talk.info(&id).state, SessionState::Ok);
    assert_eq!(bench.log_bytes(&id), before);
    drop(talk);
    bench.kill_daemon();
    drop(mounts);
}

#[test]
fn a_file_system_that_stands_still() {
    let OnExt4 { mut bench, mounts, .. } = match on_ext4() {
        Ok(ready) => ready,
        Err(reason) => return skip(&format!("no ext4 can be mounted here: {reason}")),
    };
    let home = bench.home().to_owned();
    let mut talk = bench.talk();
    let id = talk.create();
    talk.turn(&id, "Hello");
    let before = bench.log_bytes(&id);
    if let Err(reason) = run("fsfreeze", &["-f", home.to_str().unwrap()]) {
        return skip(&format!("no file system can be frozen here: {reason}"));
    }
    let waiting = talk.begin(Request::Send { session: id.clone(), text: "Into the ice".to_owned() });

    // others are answered meanwhile, and told of it
    let mut other = bench.talk();
    let begin = Instant::now();
    let age = loop {
        match other.ask(Request::Status {}).expect("status") {
            Reply::Status { status } => {
                if let Some(age) = Some(status.oldest_sync_ms).filter(|age| *age > 500) {
                    break age;
                }
            }
            other => panic!("{other:?}"),
        }
        assert!(begin.elapsed() < PATIENCE, "status does not tell of the disk");
        std::thread::sleep(Duration::from_millis(50));
    };
    println!("a sync waits for {age} ms");
    assert!(matches!(other.ask(Request::List {}), Ok(Reply::Sessions { .. })));
    assert_eq!(bench.log_bytes(&id), before, "nothing is told that is not on the disk");
    assert_eq!(bench.server.completions().len(), 1, "the model is not asked before the message is durable");

    run("fsfreeze", &["-u", home.to_str().unwrap()]).unwrap();
    let mut answered = false;
    while !answered {
        match talk.incoming("the answer, or the turn's end") {
            Some(Incoming::Answer(of, answer)) if of == Some(waiting) => {
                answer.expect("the message is taken");
                answered = true;
            }
            Some(_) => {}
            None => panic!("the daemon closed the connection"),
        }
    }
    let ended = |kind: &EventKind| matches!(kind, EventKind::TurnEnd { .. });
    talk.until(&id, "the turn's end", ended);
    assert_eq!(told(&talk.turn(&id, "Warm again")).last().unwrap(), "turn_end done");
    let log = bench.log(&id);
    assert_eq!(log[5..9], ["user 2: Into the ice", "assistant 2 stop: ok", "usage 2", "turn_end 2 done"]);
    drop((talk, other));
    bench.kill_daemon();
    drop(mounts);
}

#[test]
fn a_log_that_is_a_device_without_an_end() {
    let mut bench = Bench::start("");
    let mut talk = bench.talk();
    let (id, other) = (talk.create(), talk.create());
    talk.turn(&id, "Hello");
    talk.turn(&other, "Hello there");
    bench.kill_daemon();
    let log = bench.log_path(&id);
    let over = match Mounted::bind(Path::new("/dev/full"), &log) {
        Ok(mounted) => mounted,
        Err(reason) => return skip(&format!("nothing can be mounted here: {reason}")),
    };
    bench.start_daemon();
    let mut talk = bench.talk();
    let error = talk.ask(Request::Send { session: id.clone(), text: "More".to_owned() }).unwrap_err();
    println!("told: {error}");
    assert!(error.message.contains("0.jsonl"), "{error}");
    assert!(matches!(talk.ask(Request::List {}), Ok(Reply::Sessions { .. })));
    assert!(bench.daemon().rss_kb() < 200_000, "{} kB", bench.daemon().rss_kb());
    talk.attach(&other, None);
    assert_eq!(told(&talk.turn(&other, "You are not touched")).last().unwrap(), "turn_end done");
    drop(over);
    // without a restart
    talk.attach(&id, None);
    assert_eq!(told(&talk.turn(&id, "And you are back")).last().unwrap(), "turn_end done");
}

#[test]
fn a_journal_that_takes_nothing() {
    let mut bench = Bench::prepare("", |_| String::new());
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut child = Daemon::command(Path::new(env!("CARGO_BIN_EXE_loopd")), bench.dir())
        .stdout(full.try_clone().unwrap())
        .stderr(full)
        .spawn()
        .unwrap();
    let socket = crate::support::daemon::socket_in(bench.dir());
    wait_until(PATIENCE, "loopd takes connections", || {
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    });
    let mut talk = bench.talk();
    let id = talk.create();
    bench.server.push(Script::say("Nobody hears me complain."));
    assert_eq!(told(&talk.turn(&id, "Hello")).last().unwrap(), "turn_end done");
    child.kill().unwrap();
    child.wait().unwrap();
    bench.daemon = None;
}
