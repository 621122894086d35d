//! Each kind of file system and option that breaks the promise, as the kernel writes it.

use super::*;
use crate::proto::Level;

const MOUNTINFO: &str = "\
22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro
30 22 0:25 / /run rw,nosuid shared:9 - tmpfs tmpfs rw,size=400k
41 22 8:3 / /srv/my\\040disk rw,noatime - xfs /dev/sda3 rw,attr2,inode64
";
const OPTIONS: &str = "rw\nbarrier\ndata=ordered\ncommit=5\n";

fn mount(kind: &str, options: &str) -> Mount {
    let options = options.split(',').map(str::to_owned).collect();
    Mount { device: "8:2".to_owned(), kind: kind.to_owned(), options }
}

/// The words and the level of the worst finding.
fn worst(mount: &Mount, ext4: Option<&Ext4>) -> (Level, String) {
    worst_of(judge(Path::new("/h"), mount, ext4, false))
}

fn worst_of(findings: Vec<Finding>) -> (Level, String) {
    let worst = findings.into_iter().max_by_key(|finding| finding.level).unwrap();
    assert_eq!(worst.remedy.is_empty(), worst.level == Level::Ok, "{worst:?}");
    (worst.level, worst.what)
}

#[test]
fn the_mount_of_a_device_is_found() {
    let found = Mount::find(MOUNTINFO, "8:3").unwrap();
    assert_eq!((found.kind.as_str(), found.has("noatime"), found.has("inode64")), ("xfs", true, true));
    assert_eq!(Mount::find(MOUNTINFO, "0:25").unwrap().kind, "tmpfs");
    assert_eq!(Mount::find(MOUNTINFO, "9:9"), None);
    assert_eq!(Mount::find("nonsense\n\n - \n", "8:2"), None);
}

#[test]
fn what_was_tested_is_good() {
    let journal = Ext4::read(OPTIONS, "fc stats:\n0 commits\n0 ineligible\n");
    assert_eq!(worst(&mount("ext4", "rw,relatime"), Some(&journal)).0, Level::Ok);
    assert_eq!(worst(&mount("ext4", "rw"), None).0, Level::Ok, "where ext4 tells nothing");
    for kind in ["xfs", "f2fs", "btrfs"] {
        assert_eq!(worst(&mount(kind, "rw"), None).0, Level::Ok, "{kind}");
    }
}

#[test]
fn what_loses_syncs_is_told() {
    let bad = [
        ("tmpfs", "rw", "a power cut empties"),
        ("nfs4", "rw", "another machine"),
        ("cifs", "rw", "another machine"),
        ("vfat", "rw", "a power cut can damage"),
        ("ecryptfs", "rw", "eCryptfs"),
        ("fuse.sshfs", "rw", "its program"),
        ("ext4", "rw,nobarrier", "mounted with nobarrier"),
        ("xfs", "rw,nobarrier", "mounted with nobarrier"),
        ("ext4", "rw,barrier=0", "mounted with barrier=0"),
        ("f2fs", "rw,fsync_mode=nobarrier", "fsync_mode=nobarrier"),
        ("ext4", "rw,data=writeback", "data=writeback"),
    ];
    for (kind, options, words) in bad {
        let (level, what) = worst(&mount(kind, options), None);
        assert!(level == Level::Bad && what.contains(words), "{kind} {options}: {level:?} {what}");
    }
    assert_eq!(worst(&mount("overlay", "rw"), None).0, Level::Warn);
    assert_eq!(worst(&mount("zonefs", "rw"), None).0, Level::Warn, "one that nobody has tested");
}

#[test]
fn read_only_is_where_the_home_is_and_not_the_same_disk_elsewhere() {
    let store =
        "50 22 8:2 /nix/store /nix/store ro,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro\n";
    let mount = Mount::find(&format!("{MOUNTINFO}{store}"), "8:2").unwrap();
    assert_eq!(worst(&mount, None).0, Level::Ok);
    let (level, what) = worst_of(judge(Path::new("/h"), &mount, None, true));
    assert!(level == Level::Bad && what.contains("read-only"), "{level:?} {what}");
}

#[test]
fn a_journal_that_is_missing_or_too_fast_is_told() {
    let none = Ext4::read("rw\nbarrier\ncommit=5\n", "");
    let (level, what) = worst(&mount("ext4", "rw"), Some(&none));
    assert!(level == Level::Bad && what.contains("without a journal"), "{what}");
    let fast = Ext4::read(OPTIONS, "fc stats:\n12 commits\n0 ineligible\n");
    let (level, what) = worst(&mount("ext4", "rw"), Some(&fast));
    assert!(level == Level::Bad && what.contains("fast_commit"), "{what}");
    let quiet = Ext4::read("rw\nnobarrier\ndata=ordered\n", "");
    let (level, what) = worst(&mount("ext4", "rw"), Some(&quiet));
    assert!(level == Level::Bad && what.contains("nobarrier"), "{what}");
}
