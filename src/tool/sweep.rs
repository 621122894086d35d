//! Finding what a tool left running, by `/proc`.
//!
//! A process counts as the tool's when it was started after it and is in its session or its process
//! group, descends from it, or has its mark in the environment; or when it has left all of these, came to the daemon
//! as an orphan, and has no other call's mark. Of two calls that run at once, the first to end takes such a one away.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::adopted::{Own, leaders};

/// How much of a process's environment is searched for the mark, in bytes.
const ENVIRONMENT_BYTES: u64 = 256 * 1024;

/// What marks a tool's processes.
#[derive(Debug, Clone)]
pub struct Mark {
    /// The direct child: the leader of the session and the group.
    pub leader: i32,
    /// When it was started, in the kernel's ticks since boot.
    pub started: u64,
    /// What stands in its environment, `NAME=value`.
    pub variable: String,
}

/// One line of `/proc/<pid>/stat`, as far as it matters.
#[derive(Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub pid: i32,
    /// It has ended and was not reaped.
    pub dead: bool,
    /// Its parent.
    pub parent: i32,
    group: i32,
    /// Its session.
    pub session: i32,
    started: u64,
}

/// When a process was started, in the kernel's ticks since boot.
pub fn started(pid: i32) -> Option<u64> {
    Some(stat_of(pid)?.started)
}

/// What the kernel says of a process, if it is there.
pub fn stat_of(pid: i32) -> Option<Stat> {
    stat(&Path::new("/proc").join(pid.to_string()))
}

/// All processes, each with its folder in `/proc`.
pub fn all() -> impl Iterator<Item = (Stat, PathBuf)> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        Some((stat(&path)?, path))
    })
}

/// A process: its number, and when it was started, since numbers are used again.
pub type Known = (i32, u64);

/// All living processes of a tool, the direct child included. Those in `known` were found earlier, and count
/// even when they have lost all that shows whose they are.
pub fn living(mark: &Mark, known: &BTreeSet<Known>) -> BTreeSet<Known> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    // held until the end: what is just being started looks like an orphan
    let (leaders, adopter) = (leaders(), Own::now());
    let candidates: Vec<(Stat, PathBuf)> =
        all().filter(|(stat, _)| stat.started >= mark.started && stat.pid != own).collect();
    let mut found = BTreeSet::from([mark.leader]);
    let left_behind = |stat: &Stat, path: &Path| {
        adopter.as_ref().is_some_and(|own| own.adopted(stat, &leaders)) && !another_call(path, mark, &leaders)
    };
    found.extend(candidates.iter().filter(|(stat, path)| left_behind(stat, path)).map(|(stat, _)| stat.pid));
    // parents usually have the lower number, so one pass mostly does; a pass that finds nothing is the last
    loop {
        let before = found.len();
        for (stat, path) in &candidates {
            let related =
                || stat.session == mark.leader || stat.group == mark.leader || found.contains(&stat.parent);
            let known = || known.contains(&(stat.pid, stat.started));
            if !found.contains(&stat.pid) && (related() || known() || marked(path, &mark.variable)) {
                found.insert(stat.pid);
            }
        }
        if found.len() == before {
            break;
        }
    }
    let alive = |stat: &&Stat| !stat.dead && found.contains(&stat.pid);
    candidates.iter().map(|(stat, _)| stat).filter(alive).map(|stat| (stat.pid, stat.started)).collect()
}

fn stat(dir: &Path) -> Option<Stat> {
    dir.file_name()?.to_str()?.parse::<u32>().ok()?;
    parse(&fs::read(dir.join("stat")).ok()?)
}

/// `pid (name) state ppid pgrp session … starttime …`; the name may hold anything, parentheses too.
fn parse(line: &[u8]) -> Option<Stat> {
    let open = memchr::memchr(b'(', line)?;
    let close = memchr::memrchr(b')', line)?;
    let pid = std::str::from_utf8(line.get(..open)?).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let dead = matches!(fields.next()?, "Z" | "X");
    let mut number = || fields.next()?.parse::<i32>().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    // after the session (field 6) the start time is field 22
    let started = fields.nth(15)?.parse().ok()?;
    Some(Stat { pid, dead, parent, group, session, started })
}

/// Whether it has the mark of another call that runs.
fn another_call(dir: &Path, mark: &Mark, leaders: &BTreeMap<i32, String>) -> bool {
    let others = leaders.iter().filter(|(leader, _)| **leader != mark.leader);
    others.map(|(_, variable)| variable).any(|variable| marked(dir, variable))
}

fn marked(dir: &Path, variable: &str) -> bool {
    let mut environment = Vec::new();
    let read = fs::File::open(dir.join("environ"))
        .and_then(|file| file.take(ENVIRONMENT_BYTES).read_to_end(&mut environment));
    read.is_ok() && environment.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_whatever_the_name() {
        let line = b"812 (a) Z (b c)) S 7 8 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 2 3\n";
        let expected = Stat { pid: 812, dead: false, parent: 7, group: 8, session: 9, started: 4711 };
        assert_eq!(parse(line), Some(expected));
        for bad in [&b""[..], b"1 (x", b"1 (x) S 1 2", b"x (x) S 1 2 3", b")("] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn this_process_is_in_proc() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(started(own).unwrap() > 0);
        assert_eq!(started(0), None);
    }
}
