//! Spill files: output that is too long for the model, kept for whoever reads it later.

use std::cell::Cell;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio_uring::buf::BoundedBuf;
use tokio_uring::fs::File;

use super::SpillTarget;

/// How many files of one stem are tried before giving up.
const NAMES_TRIED: u32 = 100;

/// One stream's spill file; it is made when the first byte is added. Needs tokio-uring's runtime, so that a slow disk
/// holds up the tool and nobody else.
pub struct Spill<'a> {
    target: Option<&'a SpillTarget>,
    /// What the call's files may still take, in bytes.
    left: &'a Cell<u64>,
    ending: &'static str,
    file: Option<(File, PathBuf)>,
    written: u64,
    failed: Option<String>,
}

/// What became of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Spilled {
    /// The file, when there is one.
    pub path: Option<PathBuf>,
    /// How many bytes of the stream it holds, from the first one on.
    pub bytes: u64,
    /// Why it does not hold all, when that is not its limit.
    pub failed: Option<String>,
}

impl<'a> Spill<'a> {
    /// No file yet. `ending` is put behind the target's stem.
    pub fn new(target: Option<&'a SpillTarget>, left: &'a Cell<u64>, ending: &'static str) -> Self {
        Self { target, left, ending, file: None, written: 0, failed: None }
    }

    /// Whether adding bytes would keep any of them.
    pub fn open(&self) -> bool {
        self.target.is_some() && self.left.get() > 0 && self.failed.is_none()
    }

    /// Appends as many of the bytes as the limit allows. An error is remembered, and ends the file.
    pub async fn add(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() || !self.open() {
            return;
        }
        if let Err(e) = self.try_add(bytes).await {
            self.failed = Some(e.to_string());
        }
    }

    async fn try_add(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        if self.file.is_none()
            && let Some(target) = self.target
        {
            self.file = Some(create(target, self.ending).await?);
        }
        let Some((file, _)) = &self.file else { return Ok(()) };
        let left = usize::try_from(self.left.get()).unwrap_or(usize::MAX);
        let count = bytes.len().min(left);
        let (written, _) = file.write_all_at(bytes.slice(..count), self.written).await;
        written?;
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.written += count;
        self.left.set(self.left.get().saturating_sub(count));
        Ok(())
    }

    /// Syncs the file and its folder: what the model is told is kept must survive a power cut.
    pub async fn finish(self) -> Spilled {
        let Some((file, path)) = self.file else {
            return Spilled { path: None, bytes: 0, failed: self.failed };
        };
        let mut failed = self.failed;
        if let Err(e) = sync(&file, &path).await {
            failed = failed.or(Some(e.to_string()));
        }
        Spilled { path: Some(path), bytes: self.written, failed }
    }
}

async fn create(target: &SpillTarget, ending: &str) -> io::Result<(File, PathBuf)> {
    let named = |e: io::Error, path: &Path| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    match std::fs::DirBuilder::new().mode(0o700).create(&target.dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(named(e, &target.dir)),
        _ => {}
    }
    let mut options = tokio_uring::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    for number in 1..=NAMES_TRIED {
        let again = if number > 1 { format!("-{number}") } else { String::new() };
        let path = target.dir.join(format!("{}{again}{ending}", target.stem));
        match options.open(&path).await {
            Ok(file) => {
                // the mode above passes through the umask, which may take the owner's bits
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
                    .map_err(|e| named(e, &path))?;
                return Ok((file, path));
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(named(e, &path)),
        }
    }
    let path = target.dir.join(format!("{}{ending}", target.stem));
    Err(named(io::ErrorKind::AlreadyExists.into(), &path))
}

async fn sync(file: &File, path: &Path) -> io::Result<()> {
    file.sync_data().await?;
    if let Some(dir) = path.parent() {
        File::open(dir).await?.sync_all().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(dir: &Path, max_bytes: u64) -> SpillTarget {
        SpillTarget { dir: dir.join("spill"), stem: "call-7".to_owned(), max_bytes }
    }

    #[test]
    fn keeps_the_first_bytes_up_to_the_limit_that_all_files_share() {
        tokio_uring::start(async {
            let home = tempfile::tempdir().unwrap();
            let target = target(home.path(), 10);
            let left = Cell::new(target.max_bytes);
            let mut out = Spill::new(Some(&target), &left, ".out");
            let mut err = Spill::new(Some(&target), &left, ".err");
            out.add(b"1234".to_vec()).await;
            err.add(b"abcd".to_vec()).await;
            out.add(b"5678".to_vec()).await;
            assert!(!err.open());
            err.add(b"efgh".to_vec()).await;
            let (out, err) = (out.finish().await, err.finish().await);
            assert_eq!((out.bytes, err.bytes), (6, 4));
            assert_eq!(std::fs::read(out.path.unwrap()).unwrap(), b"123456");
            let path = err.path.unwrap();
            assert_eq!(path, home.path().join("spill/call-7.err"));
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let dir = std::fs::metadata(home.path().join("spill")).unwrap();
            assert_eq!(dir.permissions().mode() & 0o777, 0o700);
        });
    }

    #[test]
    fn never_writes_a_file_that_is_there_and_says_why_it_could_not() {
        tokio_uring::start(async {
            let home = tempfile::tempdir().unwrap();
            let mut target = target(home.path(), 10);
            std::fs::create_dir(&target.dir).unwrap();
            std::os::unix::fs::symlink("/dev/full", target.dir.join("call-7.out")).unwrap();
            let left = Cell::new(target.max_bytes);
            let mut spill = Spill::new(Some(&target), &left, ".out");
            spill.add(b"x".to_vec()).await;
            assert_eq!(spill.finish().await.path.unwrap(), home.path().join("spill/call-7-2.out"));

            target.dir = home.path().join("no/such");
            let mut spill = Spill::new(Some(&target), &left, ".out");
            spill.add(b"x".to_vec()).await;
            let spilled = spill.finish().await;
            assert_eq!((spilled.path, spilled.bytes), (None, 0));
            assert!(spilled.failed.unwrap().contains("no/such"));
        });
    }
}
