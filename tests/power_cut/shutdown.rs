//! The file system itself is cut off, on the kernel of this machine: the ioctl with which file systems test
//! their own recovery. It needs no guest, and shows file systems that the guest does not have.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use boxmaker::proto::Request;
use nix::libc;

use crate::guest::{Console, KEPT, note, one_turn, rebase};
use crate::ledger::{Told, lost, opens};
use crate::support::bench::Bench;
use crate::support::mounted::Mounted;
use crate::support::random::{Rng, number, seed};
use crate::support::{skip, skip_everywhere};

/// `EXT4_IOC_SHUTDOWN`, `XFS_IOC_GOINGDOWN` and `F2FS_IOC_SHUTDOWN` are one and the same.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Whatever is not on the disk stays away from it, the journal included.
static NO_FLUSH: u32 = 2;

/// A kind of file system: the program that makes it and its Debian package, the program's options, and the
/// disk's size in MB.
struct Kind {
    program: &'static str,
    package: &'static str,
    options: &'static [&'static str],
    size: u64,
}

const EXT4: Kind = Kind {
    program: "mkfs.ext4",
    package: "e2fsprogs",
    options: &["-q", "-F", "-O", "has_journal,^fast_commit"],
    size: 64,
};
const XFS: Kind = Kind { program: "mkfs.xfs", package: "xfsprogs", options: &["-q", "-f"], size: 320 };
const F2FS: Kind = Kind { program: "mkfs.f2fs", package: "f2fs-tools", options: &["-q", "-f"], size: 128 };

impl Kind {
    /// Makes an empty one in a file in `dir`.
    fn make(&self, dir: &Path) -> PathBuf {
        let image = dir.join("image");
        fs::File::create(&image).and_then(|file| file.set_len(self.size << 20)).unwrap();
        let made = Command::new(self.program).args(self.options).arg(&image).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        image
    }

    /// Why it cannot be made or mounted here, if so.
    fn missing(&self) -> Option<String> {
        let programs = [(self.program, self.package), ("losetup", "mount"), ("findmnt", "util-linux")];
        crate::uml::missing_of(&programs).or_else(|| {
            let dir = folder();
            let mounted = Mounted::image(&self.make(dir.path()), &dir.path().join("disk"));
            mounted.err().map(|why| format!("no disk of {} can be mounted here: {why}", self.program))
        })
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("down-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn shut_down(mounted: &Path) {
    let dir = fs::File::open(mounted).unwrap();
    // SAFETY: the ioctl reads one word
    let result = unsafe { libc::ioctl(dir.as_raw_fd(), SHUTDOWN, &raw const NO_FLUSH) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Turns, a cut in the middle of one, and what is left of it.
fn round(image: &Path, at: &Path, turns: u64, rng: &mut Rng) -> (Vec<Told>, Vec<String>) {
    let mut console = Console::here(at);
    let disk = Mounted::image(image, at).unwrap();
    fs::create_dir(at.join("home")).unwrap();
    let mut bench = Bench::prepare(KEPT, |_| note(at));
    bench.gone = true;
    // room for summaries
    bench.server.set(|behaviour| behaviour.n_ctx = 1 << 24);
    fs::create_dir(bench.home()).unwrap();
    for dir in [&at.join("home"), bench.home()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let bound = Mounted::bind(&at.join("home"), bench.home()).unwrap();
    bench.start_daemon();
    let mut talk = bench.talk();
    let id = talk.create();
    console.tell(&id, "session_start", 0, 1);
    for n in 0..turns {
        one_turn(&bench, &mut talk, &mut console, &id, n);
        if n % 2 == 1 {
            rebase(&mut talk, &mut console, &id);
        }
    }
    talk.begin(Request::Send { session: id.clone(), text: "In the middle of this".to_owned() });
    std::thread::sleep(Duration::from_micros(rng.next() % 30_000));
    shut_down(at);
    drop(talk);
    bench.kill_daemon();
    drop((bound, disk));
    let _disk = Mounted::image(image, at).unwrap();
    let mut wrong = lost(at, &console.told);
    let runtime = boxmaker::store::Uring::runtime().expect("io_uring");
    wrong.extend(runtime.block_on(opens(&at.join("home"), &console.told)).0);
    if wrong.is_empty() {
        crate::goes_on(&at.join("home"));
    }
    (console.told, wrong)
}

/// Shuts disks of this kind down again and again.
fn what_was_told_survives(kind: &Kind) {
    let (begin, mut rng) = (Instant::now(), Rng::new(seed()));
    let times = number("BOXMAKER_POWER_CUTS", 2).div_ceil(5).max(2);
    let (mut told, mut wrong) = (0, Vec::new());
    for n in 0..times {
        let dir = folder();
        let image = kind.make(dir.path());
        let (more, what) = round(&image, &dir.path().join("disk"), 1 + rng.next() % 6, &mut rng);
        told += more.len();
        wrong.extend(what.into_iter().map(|what| format!("round {n}: {what}")));
    }
    println!(
        "{}: {times} cuts, {told} things told, {} wrong, {:.1} s",
        kind.program,
        wrong.len(),
        begin.elapsed().as_secs_f64()
    );
    assert!(wrong.is_empty() && told > 0, "{}: {wrong:#?}", kind.program);
}

#[test]
fn what_was_told_survives_an_ext4_that_is_shut_down() {
    match EXT4.missing() {
        Some(reason) => skip(&reason),
        None => what_was_told_survives(&EXT4),
    }
}

#[test]
fn what_was_told_survives_an_xfs_that_is_shut_down() {
    match XFS.missing() {
        Some(reason) => skip(&reason),
        None => what_was_told_survives(&XFS),
    }
}

#[test]
fn what_was_told_survives_an_f2fs_that_is_shut_down() {
    match F2FS.missing() {
        // no usual kernel of a continuous integration has it
        Some(reason) => skip_everywhere(&reason),
        None => what_was_told_survives(&F2FS),
    }
}
