//! The store's two operations on io_uring with nothing of the store around them: what an append costs at least when
//! the thread that asks for it must not wait for the disk itself.

use std::fs::File;
use std::os::fd::AsRawFd as _;

use io_uring::squeue::Flags;
use io_uring::{IoUring, opcode, types};

/// A ring of this thread's.
pub struct Ring(IoUring);

impl Ring {
    /// A ring with room for 32 appends.
    pub fn new() -> Self {
        Self(IoUring::new(64).expect("io_uring"))
    }

    /// Appends `bytes` to every file at `at`, durably, and again behind that until each has `each` of them: one after
    /// the other to each file, to all files at once.
    pub fn append(&mut self, files: &[File], bytes: &[u8], at: u64, each: usize) {
        let mut done = vec![0; files.len()];
        (0..files.len()).for_each(|n| self.push(files, n, bytes, at));
        let mut left = files.len() * each;
        while left > 0 {
            self.0.submit_and_wait(1).expect("submit");
            let ended: Vec<_> = self.0.completion().collect();
            for entry in ended {
                assert!(entry.result() >= 0, "an operation failed: {entry:?}");
                let Some(n) = entry.user_data().checked_sub(1) else {
                    assert_eq!(usize::try_from(entry.result()).unwrap(), bytes.len());
                    continue;
                };
                let n = usize::try_from(n).unwrap();
                left -= 1;
                done[n] += 1;
                if done[n] < each {
                    self.push(files, n, bytes, at + (done[n] * bytes.len()) as u64);
                }
            }
        }
    }

    fn push(&mut self, files: &[File], n: usize, bytes: &[u8], at: u64) {
        let fd = types::Fd(files[n].as_raw_fd());
        let len = u32::try_from(bytes.len()).unwrap();
        let write = opcode::Write::new(fd, bytes.as_ptr(), len).offset(at).build().flags(Flags::IO_LINK);
        let sync = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build().user_data(n as u64 + 1);
        // SAFETY: `append` holds the files and the bytes until all that it pushed has ended.
        unsafe { self.0.submission().push_multiple(&[write, sync]) }.expect("room in the queue");
    }
}
