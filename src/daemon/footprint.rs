//! Gives memory back when the daemon has nothing to do.
//!
//! Most of an idle daemon's resident memory is program text that the start, or the last turn, ran through, with what lies
//! around it. The kernel takes such pages only when it looks for memory, and prefers to keep those that a process has
//! mapped and run; here it is told that they are not needed. Whatever is needed again comes back by itself, page by page,
//! from the page cache, or from the file if the kernel wanted the room.
//!
//! Invariant: only what is the file's is given back, never what the process wrote. Those are the segments that the program
//! headers of the program and its libraries call not writable. What the loader relocates and then protects lies in a
//! writable one.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use nix::libc;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::unistd::{SysconfVar, sysconf};

/// How often is looked whether there is nothing to do.
const EVERY: Duration = Duration::from_secs(5);
/// The processor time (µs) in [`EVERY`] that is no work: the timers of a daemon with nothing to do take a tenth of it.
const NO_WORK: i64 = 5000;
/// How much of files (bytes) may stay mapped. Those timers need the half; a turn needs twice as much.
const MAPPED: u64 = 4 * 1024 * 1024;

/// Gives back what is not needed, each time that there is nothing to do. Never ends.
pub(super) async fn shrink_when_quiet() {
    let mut before = processor_time();
    loop {
        tokio::time::sleep(EVERY).await;
        let now = processor_time();
        let works = now.saturating_sub(before) > NO_WORK;
        before = now;
        if !works && mapped().is_some_and(|mapped| mapped > MAPPED) {
            give_back();
        }
    }
}

/// The processor time that all threads have used, in µs.
fn processor_time() -> i64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0 };
    (usage.user_time() + usage.system_time()).num_microseconds()
}

/// How much of files is in the process's memory, in bytes.
fn mapped() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/self/statm").ok()?;
    told.split(' ').nth(2)?.parse::<u64>().ok()?.checked_mul(page_size()?)
}

fn give_back() {
    // SAFETY: it takes nothing but a callback, which is one for it, and data for that, of which there is none.
    unsafe { libc::dl_iterate_phdr(Some(give_back_text), std::ptr::null_mut()) };
    // what was freed, and lies between what was not
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives back the segments of a program or library that are not writable. The loader holds its lock meanwhile: none of
/// them is being unloaded.
unsafe extern "C" fn give_back_text(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut c_void,
) -> c_int {
    // SAFETY: the loader hands out what is valid during the call, and so many headers.
    let (base, headers) = unsafe {
        let object = &*object;
        (object.dlpi_addr, std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)))
    };
    for header in headers {
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
            give_back_segment(base.saturating_add(header.p_vaddr), header.p_memsz);
        }
    }
    0
}

/// Gives back the pages that lie wholly in a segment.
fn give_back_segment(at: u64, length: u64) {
    let Some(page) = page_size() else { return };
    let end = at.saturating_add(length) / page * page;
    let at = at.next_multiple_of(page);
    let (Ok(start), Ok(length)) = (usize::try_from(at), usize::try_from(end.saturating_sub(at))) else {
        return;
    };
    if length > 0 {
        // SAFETY: no page of it was ever written to: what is in memory is what is in the file, and is read from there again.
        // It is advice: one that the kernel does not take (of its own segments, say) changes nothing.
        unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(start), length, libc::MADV_DONTNEED) };
    }
}

fn page_size() -> Option<u64> {
    sysconf(SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| u64::try_from(size).ok())
        .filter(|size| *size > 0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// All that the program and its libraries have in memory and cannot write, relocated or not.
    fn constants() -> Vec<(String, Vec<u8>)> {
        let memory = File::open("/proc/self/mem").unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let of_files = maps.lines().filter(|line| line.contains(" r--p ") || line.contains(" r-xp "));
        of_files
            .filter(|line| line.contains('/'))
            .map(|line| {
                let (range, _) = line.split_once(' ').unwrap();
                let (start, end) = range.split_once('-').unwrap();
                let start = u64::from_str_radix(start, 16).unwrap();
                let end = u64::from_str_radix(end, 16).unwrap();
                let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
                memory.read_exact_at(&mut bytes, start).unwrap();
                (line.to_owned(), bytes)
            })
            .collect()
    }

    #[test]
    fn what_was_relocated_or_is_constant_stays_as_it_is() {
        let before = constants();
        give_back();
        let after = constants();
        assert!(before.len() > 4, "{}", before.len());
        for ((line, before), (_, after)) in before.iter().zip(&after) {
            assert!(before == after, "{line}");
        }
    }
}
