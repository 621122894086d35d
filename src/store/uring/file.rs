//! An open file.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use io_uring::{opcode, squeue, types};
use nix::libc;

use super::super::storage::{Appended, StorageFile};
use super::ring;

/// A file, open through io_uring.
#[derive(Debug)]
pub struct UringFile(Arc<OwnedFd>);

impl UringFile {
    pub(super) fn new(fd: Arc<OwnedFd>) -> Self {
        Self(fd)
    }

    fn fd(&self) -> types::Fd {
        types::Fd(self.0.as_raw_fd())
    }
}

/// What one entry can carry; the kernel takes a little less than 2 GiB at once.
fn entry_len(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes)
        .ok()
        .filter(|len| *len < 0x7fff_f000)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "more bytes than one operation takes"))
}

impl StorageFile for UringFile {
    async fn read_at(&self, at: u64, buffer: Vec<u8>) -> io::Result<Vec<u8>> {
        let len = entry_len(buffer.len())?;
        let (fd, file) = (self.fd(), Arc::clone(&self.0));
        let (read, (_, mut buffer)) = ring::spawn(1, move || {
            let mut held = (file, buffer);
            let entry = opcode::Read::new(fd, held.1.as_mut_ptr(), len).offset(at).build();
            ring::submit(held, ring::Count, entry)
        })
        .await?;
        buffer.truncate(read?);
        Ok(buffer)
    }

    async fn append(&self, at: u64, bytes: Vec<u8>) -> Appended {
        let canceled = || Err(io::Error::from_raw_os_error(libc::ECANCELED));
        let len = match entry_len(bytes.len()) {
            Ok(len) => len,
            Err(e) => return Appended { written: Err(e), synced: canceled() },
        };
        let (fd, file) = (self.fd(), Arc::clone(&self.0));
        ring::run(2, move |ticket| {
            let held = (Arc::clone(&file), bytes, Rc::clone(&ticket));
            let write =
                opcode::Write::new(fd, held.1.as_ptr(), len).offset(at).build().flags(squeue::Flags::IO_LINK);
            let sync = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
            // nothing may come between these two lines: together they are one submission
            let mut write = ring::submit(held, ring::Count, write);
            let mut sync = ring::submit((Arc::clone(&file), Rc::clone(&ticket)), ring::Done, sync);
            async move {
                let (mut written, mut synced) = (None, None);
                // that the sync comes first cannot happen while the two are linked; if it does all the
                // same, it proves nothing about the write
                let mut overtaken = false;
                std::future::poll_fn(|cx| {
                    if written.is_none()
                        && let Poll::Ready((result, _)) = Pin::new(&mut write).poll(cx)
                    {
                        written = Some(result);
                    }
                    if synced.is_none()
                        && let Poll::Ready(result) = Pin::new(&mut sync).poll(cx)
                    {
                        overtaken = written.is_none();
                        synced = Some(result);
                    }
                    if written.is_some() && synced.is_some() { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                let synced = match synced {
                    Some(Ok(())) if overtaken => {
                        let again = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
                        Some(ring::submit((file, ticket), ring::Done, again).await)
                    }
                    other => other,
                };
                Appended {
                    written: written.unwrap_or_else(|| Err(io::Error::other("no answer"))),
                    synced: synced.unwrap_or_else(|| Err(io::Error::other("no answer"))),
                }
            }
        })
        .await
    }

    async fn reserve(&self, at: u64, len: u64) -> io::Result<()> {
        let (fd, file) = (self.fd(), Arc::clone(&self.0));
        ring::spawn(1, move || {
            let entry = opcode::Fallocate::new(fd, len).offset(at).mode(libc::FALLOC_FL_KEEP_SIZE).build();
            ring::submit(file, ring::Done, entry)
        })
        .await?
    }

    async fn truncate(&self, len: u64) -> io::Result<()> {
        let file = Arc::clone(&self.0);
        let len = i64::try_from(len).map_err(io::Error::other)?;
        super::blocking(move || Ok(nix::unistd::ftruncate(&file, len)?)).await
    }

    async fn sync(&self) -> io::Result<()> {
        let (fd, file) = (self.fd(), Arc::clone(&self.0));
        ring::spawn(1, move || {
            let entry = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
            ring::submit(file, ring::Done, entry)
        })
        .await?
    }

    async fn refresh(&self) -> io::Result<()> {
        self.sync().await?;
        let (fd, file) = (self.fd(), Arc::clone(&self.0));
        ring::spawn(1, move || {
            let entry = opcode::Fadvise::new(fd, 0, libc::POSIX_FADV_DONTNEED).build();
            ring::submit(file, ring::Done, entry)
        })
        .await?
    }
}
