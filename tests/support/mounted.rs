//! File systems for tests, mounted for as long as a value lives.

#![allow(dead_code, reason = "each test crate uses its own part of this")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What is mounted until it is dropped: a disk's image, a folder, or a file system in memory.
pub struct Mounted {
    at: PathBuf,
    /// What a loop device was made for.
    image: Option<PathBuf>,
}

impl Mounted {
    /// Mounts; ext4 replays its journal.
    pub fn image(image: &Path, at: &Path) -> Result<Self, String> {
        Self::image_with("loop", image, at)
    }

    /// The same, with other options; `loop` must be among them.
    pub fn image_with(options: &str, image: &Path, at: &Path) -> Result<Self, String> {
        fs::create_dir_all(at).map_err(|e| e.to_string())?;
        run(Command::new("mount").args(["-o", options]).arg(image).arg(at))?;
        Ok(Self { at: at.to_owned(), image: Some(image.to_owned()) })
    }

    /// Shows a folder at another place, too.
    pub fn bind(from: &Path, at: &Path) -> Result<Self, String> {
        run(Command::new("mount").arg("--bind").arg(from).arg(at))?;
        Ok(Self { at: at.to_owned(), image: None })
    }

    /// A file system in memory, with these options.
    pub fn tmpfs(options: &str, at: &Path) -> Result<Self, String> {
        fs::create_dir_all(at).map_err(|e| e.to_string())?;
        run(Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(at))?;
        Ok(Self { at: at.to_owned(), image: None })
    }

    /// An overlay of folders, with these options.
    pub fn overlay(options: &str, at: &Path) -> Result<Self, String> {
        run(Command::new("mount").args(["-t", "overlay", "-o", options, "none"]).arg(at))?;
        Ok(Self { at: at.to_owned(), image: None })
    }

    /// Mounts it anew with these options, in the same place.
    pub fn remount(&self, options: &str) -> Result<(), String> {
        run(Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.at)).map(|_| ())
    }

    /// Unmounts, and sees that nothing of the file system is left in the kernel.
    fn unmount(&self) -> Result<(), String> {
        if run(Command::new("findmnt").arg("--noheadings").arg(&self.at)).is_ok() {
            run(Command::new("umount").arg(&self.at))?;
        }
        let Some(image) = &self.image else { return Ok(()) };
        let devices = run(Command::new("losetup").arg("--associated").arg(image))?;
        if devices.is_empty() { Ok(()) } else { Err(format!("still in use: {devices}")) }
    }
}

impl Drop for Mounted {
    /// A killed process is gone before the kernel has let go of its io_uring and of the files that are open
    /// in it, and a process with a mount namespace of its own keeps a file system too. So it is waited for:
    /// one that lives on would be there, as it is, when the image is mounted again.
    fn drop(&mut self) {
        // one that a test froze is not unmounted before it has thawed
        let _ = run(Command::new("fsfreeze").arg("-u").arg(&self.at));
        let begin = Instant::now();
        while let Err(why) = self.unmount() {
            if begin.elapsed() > Duration::from_secs(20) {
                let _ = Command::new("umount").arg("-l").arg(&self.at).output();
                assert!(std::thread::panicking(), "{}: {why}", self.at.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Runs a program; gives what it printed.
pub fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}
