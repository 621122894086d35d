//! A disk in memory that fails on demand and forgets whatever a power cut may forget.
//!
//! Each file has two contents: what reads show (the page cache) and what the disk holds. A write makes
//! sectors of 512 bytes dirty; a sync takes them to the disk. Each directory has two sets of names in the
//! same way, with the changes between them in order. A power cut keeps any subset of the dirty sectors,
//! any length between the two, and any subset of the unsynced changes of names; where a file is longer than what
//! was written of it, there are zeros, or what the disk held before. A failed sync takes some
//! sectors to the disk and marks the others clean all the same, as Linux does. An operation takes as long as it
//! likes, so those of several sessions overtake each other.

use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use boxmaker::store::{Access, Appended, Entry, Kind, Storage, StorageFile};

const SECTOR: usize = 512;

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

/// A small generator of pseudo-random numbers (xorshift64*), so that a seed gives the same run for ever.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next()).unwrap() % n
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

#[derive(Debug, Clone)]
enum Change {
    Add(String, u64),
    Remove(String),
    Rename(String, String, u64),
}

#[derive(Debug, Clone)]
enum Node {
    File { cache: Vec<u8>, disk: Vec<u8>, dirty: BTreeSet<usize> },
    Dir { names: BTreeMap<String, u64>, disk: BTreeMap<String, u64>, changes: Vec<Change> },
}

impl Node {
    fn new_dir() -> Self {
        Self::Dir { names: BTreeMap::new(), disk: BTreeMap::new(), changes: Vec::new() }
    }
}

#[derive(Debug)]
struct Disk {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    locks: BTreeSet<u64>,
    ops: u64,
    fault: Option<(u64, Fault)>,
    crashed: bool,
    bugs: Bugs,
    rng: Rng,
    trace: Vec<String>,
    /// Writes that no store may make, whatever becomes of them.
    wrong: Vec<String>,
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
        disk.nodes.insert(node, Node::File { cache: bytes.clone(), disk: bytes, dirty: BTreeSet::new() });
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

impl Node {
    fn power_cut(&mut self, rng: &mut Rng) {
        match self {
            Self::File { cache, disk, dirty } => {
                let (short, long) = (disk.len().min(cache.len()), disk.len().max(cache.len()));
                let len = match rng.below(3) {
                    0 => disk.len(),
                    1 => cache.len(),
                    _ => short + rng.below(long - short + 1),
                };
                let len = if dirty.is_empty() && disk.len() == cache.len() { disk.len() } else { len };
                // none, all, or any of the dirty sectors were on their way
                let (none, all) = (rng.chance(4), rng.chance(4));
                let mut now = disk.clone();
                now.resize(len, 0);
                if rng.chance(4) {
                    leave_stale(disk.len(), &mut now, rng);
                }
                for sector in dirty.iter() {
                    if all || (!none && rng.chance(2)) {
                        copy_sector(cache, &mut now, *sector);
                    }
                }
                *cache = now.clone();
                *disk = now;
                dirty.clear();
            }
            Self::Dir { names, disk, changes } => {
                let (none, all) = (rng.chance(4), rng.chance(4));
                for change in changes.drain(..) {
                    if all || (!none && rng.chance(2)) {
                        match change {
                            Change::Add(name, node) => {
                                disk.insert(name, node);
                            }
                            Change::Remove(name) => {
                                disk.remove(&name);
                            }
                            Change::Rename(from, to, node) => {
                                disk.remove(&from);
                                disk.insert(to, node);
                            }
                        }
                    }
                }
                *names = disk.clone();
            }
        }
    }

    /// Takes the file to the disk. A failing sync takes some sectors, and forgets that the others are
    /// not there.
    fn sync(&mut self, fails: Option<&mut Rng>) {
        match self {
            Self::File { cache, disk, dirty } => match fails {
                None => {
                    disk.resize(cache.len(), 0);
                    for sector in dirty.iter() {
                        copy_sector(cache, disk, *sector);
                    }
                    dirty.clear();
                }
                Some(rng) => {
                    if rng.chance(2) {
                        disk.resize(cache.len(), 0);
                    }
                    for sector in std::mem::take(dirty) {
                        if rng.chance(2) {
                            copy_sector(cache, disk, sector);
                        }
                    }
                }
            },
            Self::Dir { names, disk, changes } => {
                if fails.is_none() {
                    *disk = names.clone();
                    changes.clear();
                }
            }
        }
    }
}

/// Fills what is new in `now` from `from` on, sector by sector, with what may have been on the disk there: parts
/// of this log's own past, or anything at all.
fn leave_stale(from: usize, now: &mut [u8], rng: &mut Rng) {
    let old = now[..from.min(now.len())].to_vec();
    let first = old.len().div_ceil(SECTOR);
    for begin in (first * SECTOR..now.len()).step_by(SECTOR) {
        let end = (begin + SECTOR).min(now.len());
        let sectors = old.len() / SECTOR;
        if sectors > 0 && rng.chance(2) {
            let at = rng.below(sectors) * SECTOR;
            now[begin..end].copy_from_slice(&old[at..at + end - begin]);
        } else {
            now[begin..end].iter_mut().for_each(|byte| *byte = rng.next().to_le_bytes()[0]);
        }
    }
}

/// Copies a sector, as far as both have it.
fn copy_sector(from: &[u8], to: &mut [u8], sector: usize) {
    let begin = sector * SECTOR;
    let end = (begin + SECTOR).min(from.len()).min(to.len());
    if begin < end {
        to[begin..end].copy_from_slice(&from[begin..end]);
    }
}

impl Disk {
    fn names(&self, dir: u64) -> io::Result<&BTreeMap<String, u64>> {
        match self.nodes.get(&dir) {
            Some(Node::Dir { names, .. }) => Ok(names),
            _ => errno(ENOTDIR),
        }
    }

    fn find(&self, path: &Path) -> io::Result<u64> {
        let mut node = 0;
        for part in path.components() {
            if let Component::Normal(name) = part {
                let name = name.to_str().unwrap();
                node = *self.names(node)?.get(name).ok_or_else(|| io::Error::from_raw_os_error(ENOENT))?;
            }
        }
        Ok(node)
    }

    fn split(&self, path: &Path) -> io::Result<(u64, String)> {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        Ok((self.find(path.parent().unwrap())?, name))
    }

    fn change(&mut self, dir: u64, change: Change) {
        if let Some(Node::Dir { names, changes, .. }) = self.nodes.get_mut(&dir) {
            match &change {
                Change::Add(name, node) => {
                    names.insert(name.clone(), *node);
                }
                Change::Remove(name) => {
                    names.remove(name);
                }
                Change::Rename(from, to, node) => {
                    names.remove(from);
                    names.insert(to.clone(), *node);
                }
            }
            changes.push(change);
        }
    }

    fn add(&mut self, path: &Path, node: Node) -> io::Result<u64> {
        let (dir, name) = self.split(path)?;
        if self.names(dir)?.contains_key(&name) {
            return errno(EEXIST);
        }
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, node);
        self.change(dir, Change::Add(name, number));
        Ok(number)
    }

    fn write(&mut self, node: u64, at: usize, bytes: &[u8]) {
        if let Some(Node::File { cache, dirty, .. }) = self.nodes.get_mut(&node) {
            let end = at + bytes.len();
            if cache.len() < end {
                cache.resize(end, 0);
            }
            cache[at..end].copy_from_slice(bytes);
            if end > at {
                dirty.extend(at / SECTOR..=(end - 1) / SECTOR);
            }
        }
    }

    /// A write is whole lines, and goes to the end of what is there.
    fn check_write(&mut self, node: u64, at: usize, bytes: &[u8]) {
        let Some(Node::File { cache, .. }) = self.nodes.get(&node) else { return };
        if cache.len() != at {
            self.wrong.push(format!("a write at {at} of a file of {} bytes", cache.len()));
        }
        if bytes.last() != Some(&b'\n') {
            self.wrong.push(format!("a write of {} bytes that ends in the middle of a line", bytes.len()));
        }
    }

    fn sync(&mut self, node: u64) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.sync(None);
        }
    }

    fn sync_fails(&mut self, node: u64) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.sync(Some(&mut self.rng));
        }
    }
}

/// A lock on a directory.
#[derive(Debug)]
pub struct SimLock(Sim, u64);

impl Drop for SimLock {
    fn drop(&mut self) {
        self.0.0.borrow_mut().locks.remove(&self.1);
    }
}

/// An open file.
#[derive(Debug)]
pub struct SimFile {
    sim: Sim,
    node: u64,
    path: PathBuf,
}

impl Storage for Sim {
    type File = SimFile;
    type Lock = SimLock;

    async fn open(&self, path: &Path, access: Access) -> io::Result<SimFile> {
        let open = |disk: &mut Disk| match access {
            Access::New => {
                let file = Node::File { cache: Vec::new(), disk: Vec::new(), dirty: BTreeSet::new() };
                disk.add(path, file)
            }
            Access::Read | Access::Write => disk.find(path),
        };
        let node = self.run(&format!("open {access:?}"), path, open).await?;
        Ok(SimFile { sim: self.clone(), node, path: path.to_owned() })
    }

    async fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.run("mkdir", path, |disk| disk.add(path, Node::new_dir()).map(|_| ())).await
    }

    async fn lock(&self, dir: &Path) -> io::Result<Option<SimLock>> {
        let node = self.run("lock", dir, |disk| disk.find(dir)).await?;
        let free = self.0.borrow_mut().locks.insert(node);
        Ok(free.then(|| SimLock(self.clone(), node)))
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.run("sync_dir", dir, |disk| {
            let node = disk.find(dir)?;
            if !disk.bugs.no_dir_sync {
                disk.sync(node);
            }
            Ok(())
        })
        .await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.run("list", dir, |disk| {
            let names = disk.names(disk.find(dir)?)?;
            let kind = |node: &u64| match disk.nodes.get(node) {
                Some(Node::Dir { .. }) => Kind::Dir,
                _ => Kind::File,
            };
            Ok(names.iter().map(|(name, node)| Entry { name: name.clone(), kind: kind(node) }).collect())
        })
        .await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.run("rename", from, |disk| {
            let node = disk.find(from)?;
            let ((dir, from), (to_dir, to)) = (disk.split(from)?, disk.split(to)?);
            assert_eq!(dir, to_dir, "renames stay in their directory");
            if disk.names(dir)?.contains_key(&to) {
                return errno(EEXIST);
            }
            disk.change(dir, Change::Rename(from, to, node));
            Ok(())
        })
        .await
    }

    async fn remove(&self, path: &Path, kind: Kind) -> io::Result<()> {
        self.run("remove", path, |disk| {
            let node = disk.find(path)?;
            if kind == Kind::Dir && !disk.names(node)?.is_empty() {
                return errno(ENOTEMPTY);
            }
            let (dir, name) = disk.split(path)?;
            disk.change(dir, Change::Remove(name));
            Ok(())
        })
        .await
    }
}

impl StorageFile for SimFile {
    async fn read_at(&self, at: u64, mut buffer: Vec<u8>) -> io::Result<Vec<u8>> {
        let at = usize::try_from(at).unwrap();
        let short = self.sim.next_is(Fault::Short);
        let read = |disk: &mut Disk| match disk.nodes.get(&self.node) {
            Some(Node::File { cache, .. }) => {
                let rest = cache.get(at..).unwrap_or_default();
                let whole = rest.len().min(buffer.len());
                // nothing at all would be the file's end
                let n = if short { whole.min(1 + disk.rng.below(whole.max(1))) } else { whole };
                buffer.truncate(n);
                buffer.copy_from_slice(&rest[..n]);
                Ok(buffer)
            }
            _ => errno(ENOENT),
        };
        self.sim.run(if short { SHORT_READ } else { "read" }, &self.path, read).await
    }

    async fn append(&self, at: u64, bytes: Vec<u8>) -> Appended {
        let at = usize::try_from(at).unwrap();
        let failed = |code| Appended { written: errno(code), synced: errno(ECANCELED) };
        self.sim.take_time().await;
        let Ok(fault) = self.sim.begin("append", &self.path) else {
            return failed(EIO);
        };
        let appended = {
            let disk = &mut *self.sim.0.borrow_mut();
            let part = disk.rng.below(bytes.len());
            let bugs = disk.bugs;
            let half = bytes.len() / 2;
            if self.path.extension().is_some_and(|extension| extension == "jsonl") {
                let first = if bugs.two_writes { &bytes[..half] } else { &bytes };
                disk.check_write(self.node, at, first);
            }
            match fault {
                Some(Fault::Error(code)) => failed(code),
                // some bytes may have been written before the error
                Some(Fault::Done(code)) => {
                    disk.write(self.node, at, &bytes[..part]);
                    failed(code)
                }
                Some(Fault::Short) => {
                    disk.write(self.node, at, &bytes[..part]);
                    Appended { written: Ok(part), synced: errno(ECANCELED) }
                }
                Some(Fault::Sync) => {
                    disk.write(self.node, at, &bytes);
                    disk.sync_fails(self.node);
                    if bugs.sync_again {
                        disk.sync(self.node);
                    }
                    let told = bugs.sync_failure_hidden || bugs.sync_again;
                    let synced = if told { Ok(()) } else { errno(EIO) };
                    Appended { written: Ok(bytes.len()), synced }
                }
                Some(Fault::Crash) => {
                    let written = if disk.rng.chance(2) { bytes.len() } else { part };
                    disk.write(self.node, at, &bytes[..written]);
                    if written == bytes.len() && disk.rng.chance(2) {
                        disk.sync(self.node);
                    }
                    failed(EIO)
                }
                None => {
                    let overtakes = bugs.sync_overtakes || (bugs.unordered && disk.rng.chance(2));
                    if overtakes {
                        disk.sync(self.node);
                    }
                    disk.write(self.node, at, &bytes);
                    if !overtakes && !bugs.ack_before_sync {
                        disk.sync(self.node);
                    }
                    Appended { written: Ok(bytes.len()), synced: Ok(()) }
                }
            }
        };
        self.sim.take_time().await;
        appended
    }

    async fn truncate(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).unwrap();
        self.sim
            .run("truncate", &self.path, |disk| {
                if let Some(Node::File { cache, dirty, .. }) = disk.nodes.get_mut(&self.node) {
                    cache.resize(len, 0);
                    dirty.retain(|sector| sector * SECTOR < len);
                }
                Ok(())
            })
            .await
    }

    async fn sync(&self) -> io::Result<()> {
        self.sim.take_time().await;
        let fault = self.sim.begin("sync", &self.path)?;
        let result = {
            let disk = &mut *self.sim.0.borrow_mut();
            match fault {
                None => {
                    disk.sync(self.node);
                    Ok(())
                }
                Some(fault) => {
                    disk.sync_fails(self.node);
                    match fault {
                        Fault::Error(code) | Fault::Done(code) => errno(code),
                        Fault::Short | Fault::Sync | Fault::Crash => errno(EIO),
                    }
                }
            }
        };
        self.sim.take_time().await;
        result
    }

    async fn refresh(&self) -> io::Result<()> {
        self.sync().await?;
        let disk = &mut *self.sim.0.borrow_mut();
        let bugs = disk.bugs;
        if let Some(Node::File { cache, disk, .. }) = disk.nodes.get_mut(&self.node)
            && !bugs.no_refresh
        {
            let len = cache.len();
            *cache = disk.clone();
            cache.resize(len, 0);
        }
        Ok(())
    }
}
