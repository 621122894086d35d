//! The store on a real disk with a planted bug: an append is acknowledged when it is written, not when it is
//! synced. The checks are worth something only if they find it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use boxmaker::store::{Access, Appended, Entry, Kind, Stamp, Storage, StorageFile, Uring, UringFile};

/// As [`Uring`], with the bug.
#[derive(Clone)]
pub struct Early;

/// A file of it.
pub struct EarlyFile(UringFile, File);

impl Storage for Early {
    type File = EarlyFile;
    type Lock = <Uring as Storage>::Lock;

    async fn open(&self, path: &Path, access: Access) -> io::Result<EarlyFile> {
        let file = Uring.open(path, access).await?;
        Ok(EarlyFile(file, OpenOptions::new().read(true).write(access != Access::Read).open(path)?))
    }

    async fn create_dir(&self, path: &Path) -> io::Result<()> {
        Uring.create_dir(path).await
    }

    async fn lock(&self, dir: &Path) -> io::Result<Option<Self::Lock>> {
        Uring.lock(dir).await
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        Uring.sync_dir(dir).await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        Storage::list(&Uring, dir).await
    }

    async fn stamps(&self, dirs: Vec<PathBuf>) -> Vec<Vec<Stamp>> {
        Uring.stamps(dirs).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Uring.rename(from, to).await
    }

    async fn pause(&self, how_long: std::time::Duration) {
        Uring.pause(how_long).await;
    }

    async fn remove(&self, path: &Path, kind: Kind) -> io::Result<()> {
        Uring.remove(path, kind).await
    }
}

impl StorageFile for EarlyFile {
    async fn read_at(&self, at: u64, buffer: Vec<u8>) -> io::Result<Vec<u8>> {
        self.0.read_at(at, buffer).await
    }

    async fn append(&self, at: u64, bytes: Vec<u8>) -> Appended {
        let written = self.1.write_all_at(&bytes, at).map(|()| bytes.len());
        Appended { written, synced: Ok(()) }
    }

    async fn reserve(&self, at: u64, len: u64) -> io::Result<()> {
        self.0.reserve(at, len).await
    }

    async fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.truncate(len).await
    }

    async fn sync(&self) -> io::Result<()> {
        self.0.sync().await
    }

    async fn refresh(&self) -> io::Result<()> {
        self.0.refresh().await
    }
}
