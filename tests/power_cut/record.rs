//! The record that `dm-log-writes` makes of a disk, and the states that the disk may be in when the power
//! goes: everything before the last flush, and of what came later any subset, down to single sectors.
//!
//! Format, version 1: sector 0 holds magic, version, number of entries and sector size, as u64, u64, u64, u32.
//! Each entry is a sector with sector, length in sectors, flags and length of its text as u64 each, the text
//! of a mark at byte 32, and then the data of a write.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
const SECTOR: usize = 512;

/// What reached the disk, in order.
#[derive(Debug)]
pub enum Entry {
    /// These bytes went to this place; with `true` durably.
    Write(usize, Vec<u8>, bool),
    /// All writes before it are durable.
    Flush,
    /// A client was told what has this number.
    Told(u64),
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn size(n: u64) -> usize {
    usize::try_from(n).expect("a size")
}

/// Reads a record.
pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let file = File::open(path)?;
    let mut head = [0; SECTOR];
    file.read_exact_at(&mut head, 0)?;
    assert_eq!(u64_at(&head, 0), MAGIC, "this is no record of dm-log-writes");
    assert_eq!(u64_at(&head, 8), 1, "its version");
    assert_eq!(head[24..28], [0, 2, 0, 0], "its sectors have 512 bytes");
    let mut at = u64::try_from(SECTOR).expect("small");
    let mut entries = Vec::new();
    for _ in 0..u64_at(&head, 16) {
        file.read_exact_at(&mut head, at)?;
        at += 512;
        let [sector, sectors, flags, text] = [0, 8, 16, 24].map(|field| u64_at(&head, field));
        if flags & MARK != 0 {
            let text = String::from_utf8_lossy(&head[32..32 + size(text)]).into_owned();
            entries.extend(text.trim_matches('\0').parse().ok().map(Entry::Told));
            continue;
        }
        if flags & FLUSH != 0 {
            entries.push(Entry::Flush);
        }
        if sectors > 0 && flags & DISCARD == 0 {
            let mut data = vec![0; size(sectors) * SECTOR];
            file.read_exact_at(&mut data, at)?;
            at += sectors * 512;
            entries.push(Entry::Write(size(sector) * SECTOR, data, flags & FUA != 0));
        }
    }
    Ok(entries)
}

/// A disk after a power cut behind the first `end` entries; `next` gives random numbers.
pub fn state(base: &[u8], entries: &[Entry], end: usize, mut next: impl FnMut() -> u64) -> Vec<u8> {
    let entries = &entries[..end];
    let flushed = entries.iter().rposition(|entry| matches!(entry, Entry::Flush)).unwrap_or(0);
    let mut disk = base.to_vec();
    let style = next() % 4;
    for (index, entry) in entries.iter().enumerate() {
        let Entry::Write(at, data, durable) = entry else { continue };
        if *durable || index < flushed || style == 0 || (style > 1 && next().is_multiple_of(2)) {
            disk[*at..*at + data.len()].copy_from_slice(data);
        } else if style == 3 {
            for (sector, bytes) in data.chunks(SECTOR).enumerate() {
                let at = at + sector * SECTOR;
                if next().is_multiple_of(2) {
                    disk[at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
    }
    disk
}
