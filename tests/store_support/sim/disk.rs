//! What the disk holds, and what of it a power cut leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path};

use super::{Bugs, EEXIST, ENOENT, ENOTDIR, Fault, Rng, errno};

pub(super) const SECTOR: usize = 512;

#[derive(Debug, Clone)]
pub(super) enum Change {
    Add(String, u64),
    Remove(String),
    Rename(String, String, u64),
}

#[derive(Debug, Clone)]
pub(super) enum Node {
    /// `version` counts what was done to it, as a file's time of change does: what the disk loses does not show there.
    File {
        cache: Vec<u8>,
        disk: Vec<u8>,
        dirty: BTreeSet<usize>,
        version: u64,
    },
    Dir {
        names: BTreeMap<String, u64>,
        disk: BTreeMap<String, u64>,
        changes: Vec<Change>,
    },
}

impl Node {
    pub(super) fn new_dir() -> Self {
        Self::Dir { names: BTreeMap::new(), disk: BTreeMap::new(), changes: Vec::new() }
    }
}

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) nodes: BTreeMap<u64, Node>,
    pub(super) next: u64,
    pub(super) locks: BTreeSet<u64>,
    pub(super) ops: u64,
    pub(super) fault: Option<(u64, Fault)>,
    pub(super) crashed: bool,
    pub(super) bugs: Bugs,
    pub(super) rng: Rng,
    pub(super) trace: Vec<String>,
    /// Writes that no store may make, whatever becomes of them.
    pub(super) wrong: Vec<String>,
}

impl Node {
    pub(super) fn power_cut(&mut self, rng: &mut Rng) {
        match self {
            Self::File { cache, disk, dirty, .. } => {
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
    pub(super) fn sync(&mut self, fails: Option<&mut Rng>) {
        match self {
            Self::File { cache, disk, dirty, .. } => match fails {
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
    pub(super) fn names(&self, dir: u64) -> io::Result<&BTreeMap<String, u64>> {
        match self.nodes.get(&dir) {
            Some(Node::Dir { names, .. }) => Ok(names),
            _ => errno(ENOTDIR),
        }
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<u64> {
        let mut node = 0;
        for part in path.components() {
            if let Component::Normal(name) = part {
                let name = name.to_str().unwrap();
                node = *self.names(node)?.get(name).ok_or_else(|| io::Error::from_raw_os_error(ENOENT))?;
            }
        }
        Ok(node)
    }

    pub(super) fn split(&self, path: &Path) -> io::Result<(u64, String)> {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        Ok((self.find(path.parent().unwrap())?, name))
    }

    pub(super) fn change(&mut self, dir: u64, change: Change) {
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

    pub(super) fn add(&mut self, path: &Path, node: Node) -> io::Result<u64> {
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

    pub(super) fn write(&mut self, node: u64, at: usize, bytes: &[u8]) {
        if let Some(Node::File { cache, dirty, version, .. }) = self.nodes.get_mut(&node) {
            *version += 1;
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
    pub(super) fn check_write(&mut self, node: u64, at: usize, bytes: &[u8]) {
        let Some(Node::File { cache, .. }) = self.nodes.get(&node) else { return };
        if cache.len() != at {
            self.wrong.push(format!("a write at {at} of a file of {} bytes", cache.len()));
        }
        if bytes.last() != Some(&b'\n') {
            self.wrong.push(format!("a write of {} bytes that ends in the middle of a line", bytes.len()));
        }
    }

    pub(super) fn sync(&mut self, node: u64) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.sync(None);
        }
    }

    pub(super) fn sync_fails(&mut self, node: u64) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.sync(Some(&mut self.rng));
        }
    }
}
