//! A disk in memory that does what it is told at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use boxmaker::store::{Access, Appended, Entry, Kind, Stamp, Storage, StorageFile};

type Bytes = Rc<RefCell<Vec<u8>>>;

/// Files by their paths.
#[derive(Clone, Default)]
pub struct Memory(Rc<RefCell<BTreeMap<PathBuf, Bytes>>>);

/// One of them.
pub struct MemoryFile(Bytes);

impl Memory {
    pub fn put(&self, path: &Path, bytes: Vec<u8>) {
        self.0.borrow_mut().insert(path.to_owned(), Rc::new(RefCell::new(bytes)));
    }
}

impl Storage for Memory {
    type File = MemoryFile;
    type Lock = ();

    async fn open(&self, path: &Path, access: Access) -> io::Result<MemoryFile> {
        if access == Access::New {
            self.put(path, Vec::new());
        }
        self.0.borrow().get(path).cloned().map(MemoryFile).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    async fn create_dir(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    async fn lock(&self, _dir: &Path) -> io::Result<Option<()>> {
        Ok(Some(()))
    }

    async fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let files = self.0.borrow();
        let here = files.keys().filter(|path| path.parent() == Some(dir));
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        Ok(here.map(|path| Entry { name: name(path), kind: Kind::File }).collect())
    }

    async fn stamps(&self, dirs: Vec<PathBuf>) -> Vec<Vec<Stamp>> {
        dirs.iter().map(|_| Vec::new()).collect()
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.0.borrow_mut().remove(from).ok_or(io::ErrorKind::NotFound)?;
        self.0.borrow_mut().insert(to.to_owned(), file);
        Ok(())
    }

    async fn pause(&self, _how_long: Duration) {}

    async fn remove(&self, path: &Path, _kind: Kind) -> io::Result<()> {
        self.0.borrow_mut().remove(path);
        Ok(())
    }
}

impl StorageFile for MemoryFile {
    async fn read_at(&self, at: u64, mut buffer: Vec<u8>) -> io::Result<Vec<u8>> {
        let bytes = self.0.borrow();
        let rest = bytes.get(usize::try_from(at).unwrap()..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer.truncate(length);
        buffer.copy_from_slice(&rest[..length]);
        Ok(buffer)
    }

    async fn append(&self, at: u64, bytes: Vec<u8>) -> Appended {
        let mut file = self.0.borrow_mut();
        file.truncate(usize::try_from(at).unwrap());
        file.extend_from_slice(&bytes);
        Appended { written: Ok(bytes.len()), synced: Ok(()) }
    }

    async fn reserve(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    async fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.borrow_mut().truncate(usize::try_from(len).unwrap());
        Ok(())
    }

    async fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    async fn refresh(&self) -> io::Result<()> {
        Ok(())
    }
}
