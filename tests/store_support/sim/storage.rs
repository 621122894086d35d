//! The simulated disk as the store sees it.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use boxmaker::store::{Access, Appended, Entry, Kind, Stamp, Storage, StorageFile};

use super::disk::{Change, Disk, Node, SECTOR};
use super::{ECANCELED, EEXIST, EIO, ENOENT, ENOTEMPTY, Fault, SHORT_READ, Sim, errno};

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
                let file =
                    Node::File { cache: Vec::new(), disk: Vec::new(), dirty: BTreeSet::new(), version: 0 };
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

    async fn stamps(&self, dirs: Vec<PathBuf>) -> Vec<Vec<Stamp>> {
        let mut all = Vec::new();
        for dir in dirs {
            let stamps = |disk: &mut Disk| {
                let names = disk.names(disk.find(&dir)?)?.clone();
                let files = names.into_iter().filter_map(|(name, file)| match disk.nodes.get(&file)? {
                    Node::Dir { .. } => None,
                    Node::File { cache, version, .. } => {
                        let (len, changed) = (u64::try_from(cache.len()).unwrap(), i128::from(*version));
                        Some(Stamp { name, file, len, changed })
                    }
                });
                Ok(files.collect())
            };
            all.push(self.run("stamps", &dir, stamps).await.unwrap_or_default());
        }
        all
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

    async fn pause(&self, _: Duration) {
        tokio::task::yield_now().await;
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

    async fn reserve(&self, _at: u64, _len: u64) -> io::Result<()> {
        self.sim.run("reserve", &self.path, |_| Ok(())).await
    }

    async fn truncate(&self, len: u64) -> io::Result<()> {
        let (sim, path, node) = (self.sim.clone(), self.path.clone(), self.node);
        let len = usize::try_from(len).unwrap();
        let cut = move |disk: &mut Disk| {
            if let Some(Node::File { cache, dirty, version, .. }) = disk.nodes.get_mut(&node) {
                *version += 1;
                cache.resize(len, 0);
                dirty.retain(|sector| sector * SECTOR < len);
            }
            Ok(())
        };
        // as the real one: on its way, whoever waits for it, and slow at times
        let turns = sim.0.borrow_mut().rng.below(100);
        let task = async move {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            sim.run("truncate", &path, cut).await
        };
        tokio::task::spawn_local(task).await.unwrap()
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
