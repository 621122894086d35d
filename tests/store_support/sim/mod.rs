//! A disk in memory that fails on demand and forgets whatever a power cut may forget.
//!
//! Each file has two contents: what reads show (the page cache) and what the disk holds. A write makes
//! sectors of 512 bytes dirty; a sync takes them to the disk. Each directory has two sets of names in the
//! same way, with the changes between them in order. A power cut keeps any subset of the dirty sectors,
//! any length between the two, and any subset of the unsynced changes of names; where a file is longer than what
//! was written of it, there are zeros, or what the disk held before. A failed sync takes some
//! sectors to the disk and marks the others clean all the same, as Linux does. An operation takes as long as it
//! likes, so those of several sessions overtake each other.

mod disk;
#[allow(clippy::duplicate_mod, reason = "some test crates have the one, some the other, and some both")]
#[path = "../../support/random.rs"]
mod random;
mod storage;

use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::rc::Rc;

use disk::{Disk, Node};
pub use random::Rng;
#[allow(unused_imports, reason = "each test crate uses its own part of this")]
pub use random::number;

/// What happens at the chosen operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails and does nothing.
    Error(i32),
    /// It fails, but was done all the same; a sync in it fails as a sync does.
    Done(i32),
    /// An append writes a part of its bytes, a read gives a part of what there is. Other operations fail with
    /// ENOSPC.
    Short,
    /// An append writes everything, its sync fails. Other operations fail with EIO.
    Sync,
    /// From here on nothing answers: the power is gone, or the process is killed.
    Crash,
}

/// What can happen to an operation: each errno that the store treats in its own way, and those that disks and
/// kernels give: EINTR, EIO, EAGAIN, ENOMEM, EFBIG, ENOSPC, EROFS, EDQUOT, ECANCELED.
pub const FAULTS: [Fault; 15] = [
    Fault::Error(4),
    Fault::Error(5),
    Fault::Error(11),
    Fault::Error(12),
    Fault::Error(27),
    Fault::Error(28),
    Fault::Error(30),
    Fault::Error(122),
    Fault::Error(125),
    Fault::Done(5),
    Fault::Done(30),
    Fault::Done(125),
    Fault::Short,
    Fault::Sync,
    Fault::Crash,
];

/// Defects that a storage, or its use, could have: planted to see that the checks find them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bugs {
    /// An append tells of success when the write is done, without a sync.
    pub ack_before_sync: bool,
    /// The sync of an append runs before its write.
    pub sync_overtakes: bool,
    /// Directories are not synced.
    pub no_dir_sync: bool,
    /// A failed sync is not reported.
    pub sync_failure_hidden: bool,
    /// What is only in the page cache is shown by a fresh open.
    pub no_refresh: bool,
    /// Write and sync of an append are not ordered: now one comes first, now the other.
    pub unordered: bool,
    /// A sync that failed is tried again, and what the second says is told.
    pub sync_again: bool,
    /// A record is written in two pieces.
    pub two_writes: bool,
}

/// The simulated disk.
#[derive(Debug, Clone)]
pub struct Sim(Rc<RefCell<Disk>>);

fn errno<T>(code: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(code))
}

/// An operation that is a read, and gives less than there is.
const SHORT_READ: &str = "read a part of";

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const ENOSPC: i32 = 28;
const ENOTEMPTY: i32 = 39;
const ECANCELED: i32 = 125;

impl Sim {
    pub fn new(seed: u64) -> Self {
        Self::with_bugs(seed, Bugs::default())
    }

    pub fn with_bugs(seed: u64, bugs: Bugs) -> Self {
        Self(Rc::new(RefCell::new(Disk {
            nodes: BTreeMap::from([(0, Node::new_dir())]),
            next: 1,
            locks: BTreeSet::new(),
            ops: 0,
            fault: None,
            crashed: false,
            bugs,
            rng: Rng::new(seed),
            trace: Vec::new(),
            wrong: Vec::new(),
        })))
    }

    /// Plans a fault at the n-th operation from now, from 1.
    pub fn fail(&self, n: u64, fault: Fault) {
        let mut disk = self.0.borrow_mut();
        disk.fault = Some((disk.ops + n, fault));
    }

    /// Plants defects from now on.
    pub fn plant(&self, bugs: Bugs) {
        self.0.borrow_mut().bugs = bugs;
    }

    pub fn no_fault(&self) {
        self.0.borrow_mut().fault = None;
    }

    /// Operations so far.
    pub fn ops(&self) -> u64 {
        self.0.borrow().ops
    }

    pub fn crashed(&self) -> bool {
        self.0.borrow().crashed
    }

    /// What was done, one line an operation.
    pub fn trace(&self) -> Ref<'_, Vec<String>> {
        Ref::map(self.0.borrow(), |disk| &disk.trace)
    }

    /// Writes that no store may make: a part of a record, or not at the end of a log.
    pub fn wrong(&self) -> Vec<String> {
        self.0.borrow().wrong.clone()
    }

    /// The machine after the process was killed: the page cache stays.
    pub fn killed(&self) -> Self {
        let disk = self.0.borrow();
        Self(Rc::new(RefCell::new(Disk {
            nodes: disk.nodes.clone(),
            next: disk.next,
            locks: BTreeSet::new(),
            ops: 0,
            fault: None,
            crashed: false,
            bugs: disk.bugs,
            rng: disk.rng.clone(),
            trace: vec!["-- killed".to_owned()],
            wrong: disk.wrong.clone(),
        })))
    }

    /// The machine after a power cut: one of the states that the disk may be in.
    pub fn power_cut(&self, seed: u64) -> Self {
        let after = self.killed();
        {
            let mut disk = after.0.borrow_mut();
            let mut rng = Rng::new(seed);
            for node in disk.nodes.values_mut() {
                node.power_cut(&mut rng);
            }
            disk.trace = vec![format!("-- power cut {seed}")];
        }
        after
    }

    pub fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let disk = self.0.borrow();
        match disk.nodes.get(&disk.find(path).ok()?)? {
            Node::File { cache, .. } => Some(cache.clone()),
            Node::Dir { .. } => None,
        }
    }

    /// Puts a file's bytes there, durably: damage from outside.
    pub fn put(&self, path: &Path, bytes: Vec<u8>) {
        let mut disk = self.0.borrow_mut();
        let node = disk.find(path).expect("the file is there");
        let Some(Node::File { version, .. }) = disk.nodes.get(&node) else { panic!("it is no file") };
        let (version, dirty) = (version + 1, BTreeSet::new());
        disk.nodes.insert(node, Node::File { cache: bytes.clone(), disk: bytes, dirty, version });
    }

    /// Whether this is what happens to the next operation.
    fn next_is(&self, fault: Fault) -> bool {
        let disk = self.0.borrow();
        disk.fault == Some((disk.ops + 1, fault))
    }

    /// Counts an operation and says what shall happen to it.
    fn begin(&self, what: &str, path: &Path) -> io::Result<Option<Fault>> {
        let mut disk = self.0.borrow_mut();
        if disk.crashed {
            return errno(EIO);
        }
        disk.ops += 1;
        let fault = disk.fault.filter(|(n, _)| *n == disk.ops).map(|(_, fault)| fault);
        let line = format!("{} {what} {} {fault:?}", disk.ops, path.display());
        disk.trace.push(line);
        if fault == Some(Fault::Crash) {
            disk.crashed = true;
        }
        Ok(fault)
    }

    /// Runs an operation that is not an append.
    async fn run<T>(
        &self,
        what: &str,
        path: &Path,
        work: impl FnOnce(&mut Disk) -> io::Result<T>,
    ) -> io::Result<T> {
        self.take_time().await;
        let fault = self.begin(what, path)?;
        let result = match fault {
            None => work(&mut self.0.borrow_mut()),
            Some(Fault::Error(code)) => errno(code),
            Some(Fault::Short) if what == SHORT_READ => work(&mut self.0.borrow_mut()),
            Some(Fault::Short) => errno(ENOSPC),
            Some(Fault::Sync) => errno(EIO),
            Some(Fault::Done(code)) => work(&mut self.0.borrow_mut()).and_then(|_| errno(code)),
            Some(Fault::Crash) => {
                // whether it was still done before the end is open
                let done = self.0.borrow_mut().rng.chance(2);
                if done {
                    let _ = work(&mut self.0.borrow_mut());
                }
                errno(EIO)
            }
        };
        self.take_time().await;
        result
    }

    /// Lets others go first, at random.
    async fn take_time(&self) {
        let turns = self.0.borrow_mut().rng.below(4);
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    }
}
