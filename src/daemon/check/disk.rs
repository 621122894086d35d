//! The home and the folder of saved slots: whose they are, on what, and with how much room.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::sys::stat::{major, minor};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access, geteuid};

use super::mounts::{Ext4, Mount, judge};
use crate::config::Config;
use crate::proto::Finding;

/// What should be free for sessions, in bytes: some long conversations.
const LEAST_FREE: u64 = 256 * 1024 * 1024;
/// Files that should be free: a session has two, and its folder.
const LEAST_FILES: u64 = 1000;

/// What is said of the home.
pub(super) fn home(config: &Config) -> Vec<Finding> {
    let home = &config.daemon.home;
    // the nearest folder that is there already tells which file system it will be
    let Some(there) = home.ancestors().find(|path| path.is_dir()) else {
        let what = format!("{} cannot be made: no part of its path is a folder", home.display());
        return vec![Finding::bad(what, "")];
    };
    let meta = match fs::metadata(there) {
        Ok(meta) => meta,
        Err(e) => return vec![Finding::bad(format!("{}: {e}", there.display()), "")],
    };
    let mut findings = Vec::new();
    if there == home {
        findings.extend(owner(home, &meta));
    }
    findings.extend(file_system(home, there, &meta));
    findings.extend(room(home, there, LEAST_FREE));
    findings
}

fn owner(home: &Path, meta: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (shown, us) = (home.display(), geteuid().as_raw());
    if meta.uid() != us {
        let what = format!("home {shown} belongs to user {}, and this is user {us}", meta.uid());
        let remedy =
            format!("run as its owner: sudo -u '#{}' …; or make it yours: chown -R {us} {shown}", meta.uid());
        findings.push(Finding::bad(what, remedy));
    }
    let mode = meta.mode() & 0o777;
    if mode & 0o077 != 0 {
        let what = format!("home {shown} has mode {mode:03o}: others can read or change conversations");
        findings.push(Finding::bad(what, format!("chmod 700 {shown}")));
    }
    findings
}

fn file_system(home: &Path, there: &Path, meta: &Metadata) -> Vec<Finding> {
    let device = format!("{}:{}", major(meta.dev()), minor(meta.dev()));
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // btrfs and overlays give files other device numbers than their mounts have
    let mount = Mount::find(&mountinfo, &device).or_else(|| by_magic(there, &device));
    let Some(mount) = mount else {
        let what = format!("the file system of home {} cannot be found out", home.display());
        return vec![Finding::warn(what, "put [daemon] home on a local disk with ext4 or XFS")];
    };
    let ext4 = (mount.kind == "ext4").then(|| read_ext4(&device)).flatten();
    let read_only = statvfs(there).is_ok_and(|there| there.flags().contains(FsFlags::ST_RDONLY));
    judge(home, &mount, ext4.as_ref(), read_only)
}

/// The kind as the file system itself tells; its options are not known then.
fn by_magic(there: &Path, device: &str) -> Option<Mount> {
    use nix::sys::statfs::{
        BTRFS_SUPER_MAGIC, FUSE_SUPER_MAGIC, NFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, statfs,
    };
    let magic = statfs(there).ok()?.filesystem_type();
    let known = [
        (BTRFS_SUPER_MAGIC, "btrfs"),
        (OVERLAYFS_SUPER_MAGIC, "overlay"),
        (NFS_SUPER_MAGIC, "nfs"),
        (FUSE_SUPER_MAGIC, "fuse"),
    ];
    let kind = known.into_iter().find(|(known, _)| *known == magic)?.1;
    Some(Mount { device: device.to_owned(), kind: kind.to_owned(), options: Vec::new() })
}

/// What ext4 tells of the device `major:minor`.
fn read_ext4(device: &str) -> Option<Ext4> {
    let link = fs::read_link(format!("/sys/dev/block/{device}")).ok()?;
    let folder = Path::new("/proc/fs/ext4").join(link.file_name()?);
    let options = fs::read_to_string(folder.join("options")).ok()?;
    Some(Ext4::read(&options, &fs::read_to_string(folder.join("fc_info")).unwrap_or_default()))
}

/// Whether there is room for `least` bytes more.
fn room(what: &Path, there: &Path, least: u64) -> Option<Finding> {
    let free = statvfs(there).ok()?;
    let bytes = free.blocks_available().saturating_mul(free.fragment_size());
    let shown = what.display();
    if bytes < least {
        let (free, least) = (bytes >> 20, least >> 20);
        let found = format!("the disk of {shown} has only {free} MiB free; less than {least} MiB is little");
        return Some(Finding::warn(found, "free some space: bxctl sessions, bxctl delete"));
    }
    // a file system without a fixed number of files tells 0 of them
    (free.files() > 0 && free.files_available() < LEAST_FILES).then(|| {
        let found = format!("the disk of {shown} has room for only {} more files", free.files_available());
        Finding::warn(found, "remove files")
    })
}

/// What is said of the folder of saved slots.
pub(super) fn slots(config: &Config) -> Vec<Finding> {
    let Some(folder) = &config.model.slot_dir else {
        let what = "[model] slot_dir is not set: the cache is lost when the model server is restarted or another \
                    session takes the slot, and where the model writes a character of several tokens";
        let remedy = "set [model] slot_dir to the folder that the server was given with --slot-save-path";
        return vec![Finding::warn(what, remedy)];
    };
    let shown = folder.display();
    if !folder.is_dir() {
        let what = format!("[model] slot_dir {shown} is not there, or is no folder");
        return vec![Finding::bad(what, "make it, and give it to the server with --slot-save-path")];
    }
    if access(folder, AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK).is_err() {
        let what = format!("[model] slot_dir {shown} cannot be read and written by this user");
        let remedy = "give the folder a group that loopd and the server share, and mode 2770";
        return vec![Finding::bad(what, remedy)];
    }
    room(folder, folder, config.limits.slot_files_bytes.min(LEAST_FREE)).into_iter().collect()
}
