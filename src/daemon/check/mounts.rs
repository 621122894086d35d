//! Which file system a folder is on, how it is mounted, and what that means for what a sync has promised.

use std::path::Path;

use crate::proto::Finding;

/// A mounted file system, as `/proc/self/mountinfo` tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// Its device, `major:minor`.
    pub(super) device: String,
    /// Its kind.
    pub(super) kind: String,
    /// Its options, of the mount and of the file system.
    pub(super) options: Vec<String>,
}

/// What only ext4 tells of itself, in `/proc/fs/ext4/<device>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ext4 {
    /// The options in force, the default ones among them.
    pub(super) options: Vec<String>,
    /// Fast commits since it was mounted.
    pub(super) fast_commits: u64,
}

impl Mount {
    /// The last mount of this device number. Any of them has the file system's own options; those of the mount itself
    /// may be of another place, where the same file system is read-only.
    pub(super) fn find(mountinfo: &str, device: &str) -> Option<Self> {
        mountinfo.lines().rev().filter_map(Self::read).find(|mount| mount.device == device)
    }

    /// One line: `36 35 98:0 /root /at rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue`.
    fn read(line: &str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mount: Vec<&str> = mount.split(' ').collect();
        let file_system: Vec<&str> = file_system.split(' ').collect();
        let options = [*mount.get(5)?, *file_system.get(2)?];
        let options = options.iter().flat_map(|list| list.split(',')).map(str::to_owned).collect();
        Some(Self { device: (*mount.get(2)?).to_owned(), kind: (*file_system.first()?).to_owned(), options })
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }
}

impl Ext4 {
    /// From the texts of `options` and `fc_info`.
    pub(super) fn read(options: &str, fc_info: &str) -> Self {
        let commits = fc_info.lines().find_map(|line| line.trim().strip_suffix(" commits")?.parse().ok());
        Self { options: options.lines().map(str::to_owned).collect(), fast_commits: commits.unwrap_or(0) }
    }
}

/// What is said of a home on this file system; `ext4` is what that tells of itself, where it can be read, and
/// `read_only` whether nothing can be written where the home is.
pub(super) fn judge(home: &Path, mount: &Mount, ext4: Option<&Ext4>, read_only: bool) -> Vec<Finding> {
    let kind = mount.kind.as_str();
    let on = |what: &str| format!("home {} is on {what}", home.display());
    let move_it = "put [daemon] home on a local disk with ext4 or XFS";
    let mut findings = vec![match kind {
        "ext4" => Finding::ok(on("ext4")),
        "xfs" => Finding::ok(on("XFS")),
        "btrfs" => Finding::ok(on("btrfs, which should hold but was not tested")),
        "f2fs" => Finding::ok(on("f2fs")),
        "tmpfs" | "ramfs" => Finding::bad(on(&format!("{kind}, which a power cut empties")), move_it),
        "overlay" | "aufs" => {
            Finding::warn(on("an overlay, whose upper folder decides what a power cut leaves"), move_it)
        }
        "ext2" | "vfat" | "msdos" | "exfat" | "ntfs" | "ntfs3" => {
            Finding::bad(on(&format!("{kind}, which a power cut can damage")), move_it)
        }
        "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "9p" | "virtiofs" | "afs" => {
            let what = format!("{kind}, a file system of another machine: locks, renames and syncs differ");
            Finding::bad(on(&what), move_it)
        }
        "ecryptfs" => Finding::bad(on("eCryptfs, which passes not every sync on"), move_it),
        _ if kind.starts_with("fuse") => {
            Finding::bad(on(&format!("{kind}: what its program does with a sync is not known")), move_it)
        }
        _ => Finding::warn(on(&format!("{kind}, which was not tested")), move_it),
    }];
    let all =
        |option: &str| mount.has(option) || ext4.is_some_and(|ext4| ext4.options.iter().any(|o| o == option));
    for option in ["nobarrier", "barrier=0", "fsync_mode=nobarrier"] {
        if all(option) {
            let what = on(&format!("a file system mounted with {option}: a sync does not reach the medium"));
            findings.push(Finding::bad(what, format!("mount it without {option}")));
        }
    }
    if kind == "ext4" && all("data=writeback") {
        let what =
            on("ext4 with data=writeback: after a power cut a file can hold what was never written to it");
        findings.push(Finding::bad(what, "mount it with data=ordered, the default"));
    }
    if read_only {
        findings.push(Finding::bad(on("a file system that is mounted read-only"), "mount it read-write"));
    }
    if let Some(ext4) = ext4.filter(|_| kind == "ext4") {
        findings.extend(judge_journal(ext4, on));
    }
    findings
}

fn judge_journal(ext4: &Ext4, on: impl Fn(&str) -> String) -> Option<Finding> {
    // with a journal, its mode is among the options
    if !ext4.options.iter().any(|option| option.starts_with("data=")) {
        let what = on("ext4 without a journal: after a power cut it needs e2fsck, which may move files away");
        return Some(Finding::bad(what, "unmount it, then tune2fs -O has_journal DEVICE"));
    }
    (ext4.fast_commits > 0).then(|| {
        let what = on("ext4 with fast_commit: states were seen after a power cut that do not mount again");
        Finding::bad(what, "unmount it, then tune2fs -O ^fast_commit DEVICE")
    })
}

#[cfg(test)]
#[path = "mounts_tests.rs"]
mod tests;
