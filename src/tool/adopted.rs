//! What a tool's processes leave behind comes to the daemon, not to init: it is their subreaper. So a process that has
//! left its session, its group, its parent and its mark is still known for a tool's, and can be killed and reaped.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::libc;
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::{Pid, geteuid, getsid};
use tokio::signal::unix::{SignalKind, signal};

use super::sweep::{self, Stat};

/// How long after the end of a child the dead are looked for, so that many ends are one look.
const PAUSE: Duration = Duration::from_secs(1);

/// How often a process is looked at whose ancestors end meanwhile.
const LOOKS: usize = 100;

/// The direct children that tools were started as, with the marks of their processes.
static LEADERS: Mutex<BTreeMap<i32, String>> = Mutex::new(BTreeMap::new());

/// The direct children that tools were started as. While this is held, none is started.
pub fn leaders() -> MutexGuard<'static, BTreeMap<i32, String>> {
    LEADERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes this process the one that orphans below it come to. A second time does nothing.
pub fn adopt() {
    // SAFETY: a system call on numbers; it cannot fail on a kernel that this program runs on
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// This process, as far as it has adopted others.
pub struct Own {
    pid: i32,
    session: i32,
}

impl Own {
    /// Init is everybody's parent: there an orphan may be anybody's, and none counts as adopted.
    pub fn now() -> Option<Self> {
        let pid = i32::try_from(std::process::id()).ok().filter(|pid| *pid != 1)?;
        Some(Self { pid, session: getsid(None).ok()?.as_raw() })
    }

    /// Whether it is a child of ours that a tool left behind: what we started ourselves is in our session, or a leader.
    pub fn adopted(&self, stat: &Stat, leaders: &BTreeMap<i32, String>) -> bool {
        stat.parent == self.pid && stat.session != self.session && !leaders.contains_key(&stat.pid)
    }
}

/// Takes the exit statuses of adopted processes that have died.
///
/// The kernel tells of a dead child without a look at all processes. It always tells of the same one, as long as that is
/// not reaped: behind one that is not ours to reap, only `/proc` shows others.
pub fn reap() {
    let leaders = leaders();
    let Some(own) = Own::now() else { return };
    while let Some(dead) = dead_child() {
        if !sweep::stat_of(dead.as_raw()).is_some_and(|stat| own.adopted(&stat, &leaders)) {
            return reap_all(&own, &leaders);
        }
        if !waitpid(dead, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid() == Some(dead)) {
            return;
        }
    }
}

/// The same by a look at all processes.
fn reap_all(own: &Own, leaders: &BTreeMap<i32, String>) {
    for (stat, _) in sweep::all().filter(|(stat, _)| stat.dead && own.adopted(stat, leaders)) {
        let _status = waitpid(Pid::from_raw(stat.pid), Some(WaitPidFlag::WNOHANG));
    }
}

/// A child that has ended and was not reaped; it stays so.
fn dead_child() -> Option<Pid> {
    waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT).ok()?.pid()
}

/// Reaps what has been adopted, for ever: a server's processes may leave theirs behind at any time.
pub async fn reap_for_ever() {
    let Ok(mut ends) = signal(SignalKind::child()) else { return };
    while ends.recv().await.is_some() {
        tokio::time::sleep(PAUSE).await;
        reap();
    }
}

/// Whether a process of user `uid` descends from this one: nobody but tools does.
///
/// What is hidden, as by `ProtectProc=`, is another user's: no tool is. One of our own that has ended before it could be
/// looked at counts as a tool's, since nobody can tell.
pub fn is_a_tools(pid: i32, uid: u32) -> bool {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    if own == 1 || pid == own {
        return false;
    }
    (0..LOOKS).find_map(|_| descends(pid, own, uid)).unwrap_or(true)
}

/// The same in one look; nothing when an ancestor ended meanwhile.
fn descends(pid: i32, own: i32, uid: u32) -> Option<bool> {
    let mut child = sweep::stat_of(pid).map(|stat| (pid, stat.parent));
    if child.is_none() {
        return Some(uid == geteuid().as_raw());
    }
    while let Some((pid, parent)) = child {
        if parent == own {
            return Some(true);
        }
        if parent <= 1 {
            break;
        }
        child = sweep::stat_of(parent).map(|stat| (parent, stat.parent));
        // it is hidden, or has ended, and then its children have another parent
        if child.is_none() && sweep::stat_of(pid).is_none_or(|stat| stat.parent != parent) {
            return None;
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;
    use std::time::Instant;

    /// Waits until a process has ended.
    fn ended(pid: i32) {
        let began = Instant::now();
        while sweep::stat_of(pid).is_some_and(|stat| !stat.dead) {
            assert!(began.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A process that came to this one as an orphan, in a session of its own, and has ended.
    fn orphan() -> i32 {
        let printed = Command::new("sh").args(["-c", "setsid true & echo $!"]).output().unwrap();
        let pid = String::from_utf8(printed.stdout).unwrap().trim().parse().unwrap();
        ended(pid);
        pid
    }

    #[test]
    fn orphans_are_reaped_and_a_leader_is_left_to_who_started_it() {
        adopt();
        let own = std::process::id();
        let dead = [orphan(), orphan()];
        reap();
        assert!(dead.iter().all(|pid| sweep::stat_of(*pid).is_none()), "{dead:?} of {own}");

        let mut command = Command::new("true");
        // SAFETY: one system call
        unsafe { command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(Into::into)) };
        let mut leader = {
            let mut leaders = leaders();
            let leader = command.spawn().unwrap();
            leaders.insert(leader.id().cast_signed(), String::new());
            leader
        };
        let pid = leader.id().cast_signed();
        ended(pid);
        let behind = [orphan(), orphan()];
        reap();
        assert!(behind.iter().all(|pid| sweep::stat_of(*pid).is_none()), "{behind:?} of {own}");
        assert!(sweep::stat_of(pid).is_some_and(|stat| stat.dead), "its status is not taken");
        leaders().remove(&pid);
        assert!(leader.wait().unwrap().success());
    }

    #[test]
    fn only_what_descends_from_this_process_is_a_tools() {
        let uid = geteuid().as_raw();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let parent = nix::unistd::getppid().as_raw();
        assert_eq!((is_a_tools(pid, uid), is_a_tools(parent, uid)), (true, false));
        child.kill().unwrap();
        child.wait().unwrap();
        // it has ended: one of our own is refused, and who is hidden from us is another user's
        assert_eq!((is_a_tools(pid, uid), is_a_tools(pid, uid + 1)), (true, false));
    }
}
