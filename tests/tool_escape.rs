//! Processes that get away from the call that started them: each is found again.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::string_slice,
    clippy::indexing_slicing
)]

mod tool_support;

use std::time::Duration;

use boxmaker::proto::ToolOutcome;
use tool_support::{Place, call, gone, pid_in, runs};

/// Leaves session, group, parent and environment behind, and says its number.
const HIDES: &str = "import os,time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve('/bin/sh', ['sh', '-c', 'echo $$ > hidden; exec sleep 300'], {'PATH': os.environ['PATH']})
    os._exit(0)
while not os.path.exists('hidden') or not open('hidden').read().strip():
    time.sleep(0.01)
";

#[test]
fn what_has_left_session_group_parent_and_mark_is_killed_and_reaped_too() {
    tokio_uring::start(async {
        let place = Place::new();
        let reply = call(place.python(HIDES), place.context(20)).await;
        assert_eq!(reply.outcome, ToolOutcome::Ok, "{}", reply.content);
        let pid = pid_in(&place.path("work/hidden"));
        gone(pid).await;
        call(place.sh("true"), place.context(20)).await;
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "nobody reaped it");
    });
}

#[test]
fn what_another_call_left_behind_with_its_mark_is_not_taken_away() {
    tokio_uring::start(async {
        let place = Place::new();
        let marked = HIDES.replace("{'PATH': os.environ['PATH']}", "os.environ") + "time.sleep(1.5)\n";
        let file = place.path("work/hidden");
        // it begins first, and ends when the other has left its process behind
        let (one, ()) = tokio::join!(
            async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                call(place.python(&marked), place.context(20)).await
            },
            async {
                call(place.sh("until [ -s hidden ]; do sleep 0.02; done"), place.context(20)).await;
                assert!(runs(pid_in(&file)), "killed by another call's end");
            }
        );
        assert_eq!(one.outcome, ToolOutcome::Ok, "{}", one.content);
        gone(pid_in(&file)).await;
    });
}
