//! Command tools against programs that mean no good: each is a real process.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::string_slice,
    clippy::indexing_slicing
)]

mod tool_support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use boxmaker::proto::ToolOutcome;
use tool_support::{Place, call, gone, pid_in, prepared, runs};

/// Waits until a tool has written a file.
async fn written(file: &Path) {
    for _ in 0..500 {
        if fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n')) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} was never written", file.display());
}

#[test]
fn arguments_go_in_and_the_result_comes_out() {
    tokio_uring::start(async {
        let place = Place::new();
        let arguments = "{\"text\": \"a\\u0000b ä\",  \"n\": 1.10}";
        let reply = prepared(place.sh("cat; echo done >&2"), arguments).run(place.context(10)).await;
        assert_eq!(reply.outcome, ToolOutcome::Ok);
        assert_eq!(reply.content, format!("{arguments}\n"));
        assert_eq!(reply.truncated_bytes, 0);
        // a megabyte that the tool never reads is no error, and does not hold it up
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(1_000_000));
        let reply = prepared(place.sh("echo ok"), &long).run(place.context(10)).await;
        assert_eq!((reply.outcome, reply.content.as_str()), (ToolOutcome::Ok, "ok\n"));
        let reply = prepared(place.sh("cat | wc -c"), &long).run(place.context(10)).await;
        assert_eq!(reply.content.trim(), (long.len() + 1).to_string());
    });
}

#[test]
fn a_failure_is_told_with_the_end_of_standard_error() {
    tokio_uring::start(async {
        let place = Place::new();
        let reply = call(place.sh("echo some; echo bad thing >&2; exit 3"), place.context(10)).await;
        assert_eq!(reply.outcome, ToolOutcome::Error);
        assert_eq!(
            reply.content,
            "tried failed with exit status 3.\nStandard error:\nbad thing\nOutput:\nsome\n"
        );
        let reply = call(place.sh("seq 100000 >&2; exit 1"), place.context(10)).await;
        assert!(
            reply.content.contains("\n100000\n[standard error: 584799 of 588895 bytes left out; all are in ")
        );
        assert_eq!(reply.truncated_bytes, 584_799);
        let reply = call(place.sh("kill -SEGV $$"), place.context(10)).await;
        assert_eq!(reply.outcome, ToolOutcome::Error);
        assert_eq!(reply.content, "tried was ended by signal 11 (SIGSEGV).");
        let reply = call(place.sh("exit 0"), place.context(10)).await;
        assert_eq!((reply.outcome, reply.content.as_str()), (ToolOutcome::Ok, "No output."));
        let reply = call(place.sh("echo hm >&2"), place.context(10)).await;
        assert_eq!(reply.outcome, ToolOutcome::Ok);
        assert_eq!(reply.content, "No output; on standard error:\nhm\n");
    });
}

#[test]
fn what_cannot_be_started_is_an_error_that_names_it() {
    tokio_uring::start(async {
        let place = Place::new();
        let script = place.path("script");
        fs::write(&script, "#!/no/such/interpreter\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let plain = place.path("plain");
        fs::write(&plain, "x").unwrap();
        let mut nowhere = place.sh("true");
        nowhere.directory = place.path("no/such/dir");
        for (spec, says) in [
            (place.program("/no/such/program", &[]), "/no/such/program: No such file"),
            (place.program(script.to_str().unwrap(), &[]), "the interpreter or the loader"),
            (place.program(plain.to_str().unwrap(), &[]), "Permission denied"),
            (place.program("/", &[]), "Permission denied"),
            (place.sh("a\0b"), "nul byte"),
            (nowhere, "no/such/dir: No such file"),
        ] {
            let reply = call(spec, place.context(10)).await;
            assert_eq!(reply.outcome, ToolOutcome::Error);
            assert!(reply.content.starts_with("The tool tried could not be started: "), "{}", reply.content);
            assert!(reply.content.contains(says), "{}", reply.content);
        }
    });
}

#[test]
fn the_environment_is_clean() {
    // SAFETY: nothing else of this process runs yet; nextest gives each test a process
    unsafe {
        std::env::set_var("BOXMAKER_TEST_SECRET", "s3cret");
        std::env::set_var("BOXMAKER_TEST_WANTED", "wanted");
    }
    tokio_uring::start(async {
        let place = Place::new();
        let mut spec = place.sh("/usr/bin/env | sort; pwd");
        spec.environment = vec!["BOXMAKER_TEST_WANTED".to_owned(), "NOT_SET".to_owned(), "a=b".to_owned()];
        let reply = call(spec, place.context(10)).await;
        let work = place.path("work").to_str().unwrap().to_owned();
        let mut lines: Vec<&str> = reply.content.lines().collect();
        lines.retain(|line| !line.starts_with("BOXMAKER_CALL=") && !line.starts_with("_="));
        assert_eq!(
            lines,
            [
                "BOXMAKER_TEST_WANTED=wanted",
                &format!("HOME={work}"),
                "LANG=C.UTF-8",
                "PATH=/run/current-system/sw/bin:/usr/local/bin:/usr/bin:/bin",
                &format!("PWD={work}"),
                &work
            ]
        );
        assert_eq!(fs::metadata(&work).unwrap().permissions().mode() & 0o777, 0o700);
    });
}

#[test]
fn a_tool_has_a_session_limits_and_nothing_inherited() {
    // a descriptor without close-on-exec, and an ignored signal: both would be inherited
    let leak = fs::File::open("/dev/null").unwrap();
    // SAFETY: plain system calls on a descriptor that lives until the end of the test
    unsafe {
        nix::libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&leak), nix::libc::F_SETFD, 0);
        nix::libc::signal(nix::libc::SIGXFSZ, nix::libc::SIG_IGN);
    }
    tokio_uring::start(async {
        let place = Place::new();
        let mut spec = place.python(
            "import os,resource as r,signal as s\n\
             print(os.getsid(0)==os.getpid()==os.getpgrp())\n\
             print(sorted(map(int,os.listdir('/proc/self/fd')))[:4])\n\
             print(r.getrlimit(r.RLIMIT_CORE), r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_FSIZE))\n\
             status=dict(l.split(':',1) for l in open('/proc/self/status'))\n\
             print(int(status['SigIgn'],16) & 0x7fffffff & ~(1<<12) & ~(1<<24), status['NoNewPrivs'].strip(), status['Umask'].strip())\n\
             print(open('/proc/self/oom_score_adj').read().strip())\n\
             print(len(open('/proc/self/fdinfo/0').read())>0, os.path.exists('/proc/self/fd/3') and os.readlink('/proc/self/fd/3'))",
        );
        spec.rlimits.open_files = 64;
        spec.rlimits.file_bytes = 1_000_000;
        let reply = call(spec, place.context(20)).await;
        let lines: Vec<&str> = reply.content.lines().collect();
        assert_eq!(lines[0], "True", "{}", reply.content);
        assert!(lines[1].starts_with("[0, 1, 2"), "{}", reply.content);
        assert!(!reply.content.contains("/dev/null"), "{}", reply.content);
        assert_eq!(lines[2], "(0, 0) (64, 64) (1000000, 1000000)");
        assert_eq!(lines[3], "0 1 0077");
        assert_eq!(lines[4], "500");
        // SIGXFSZ is not ignored, whatever the daemon does: the program dies at its limit
        let mut spec = place.sh("exec head -c 2000000 /dev/zero > big");
        spec.rlimits.file_bytes = 1_000_000;
        let reply = call(spec, place.context(20)).await;
        assert_eq!(reply.content, "tried was ended by signal 25 (SIGXFSZ).");
    });
}

#[test]
fn one_that_never_ends_is_ended_at_its_limit_with_what_it_said() {
    tokio_uring::start(async {
        let place = Place::new();
        let began = Instant::now();
        let reply = call(place.sh("echo hello; sleep 1000"), place.context(1)).await;
        assert_eq!(reply.outcome, ToolOutcome::TimedOut);
        assert_eq!(reply.content, "tried was ended: it ran for more than 1 seconds.\nOutput:\nhello\n");
        assert!(reply.millis >= 1000);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        // its own limit goes before the caller's
        let mut spec = place.sh("sleep 1000");
        spec.seconds = Some(0);
        let reply = call(spec, place.context(1000)).await;
        assert_eq!(reply.outcome, ToolOutcome::TimedOut);
    });
}

#[test]
fn one_that_ignores_term_and_its_children_are_killed() {
    tokio_uring::start(async {
        let place = Place::new();
        let script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > child; while :; do sleep 0.1; done' & \
                      echo $$ > parent; while :; do sleep 0.1; done";
        let began = Instant::now();
        let reply = call(place.sh(script), place.context(1)).await;
        assert_eq!(reply.outcome, ToolOutcome::TimedOut);
        let took = began.elapsed();
        assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(8), "{took:?}");
        assert!(!runs(pid_in(&place.path("work/parent"))) && !runs(pid_in(&place.path("work/child"))));
    });
}

#[test]
fn one_that_handles_term_can_say_its_last_words() {
    tokio_uring::start(async {
        let place = Place::new();
        let script = "trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done";
        let reply = call(place.sh(script), place.context(1)).await;
        assert_eq!(reply.outcome, ToolOutcome::TimedOut);
        assert!(reply.content.ends_with("Output:\nsaved\n"), "{}", reply.content);
    });
}

#[test]
fn what_it_leaves_running_is_killed_also_when_it_left_the_session() {
    tokio_uring::start(async {
        let place = Place::new();
        for (how, script) in [
            ("in the group", "sleep 1000 >/dev/null 2>&1 & echo $! > left"),
            ("in a session of its own", "setsid sh -c 'echo $$ > left; exec sleep 1000' >/dev/null 2>&1 &"),
            (
                "in a session of its own, its parent gone",
                "(setsid sh -c 'echo $$ > left; exec sleep 1000' >/dev/null 2>&1 &)",
            ),
            (
                "with an empty environment, in the session",
                "(env -i /bin/sh -c 'echo $$ > left; exec sleep 1000' >/dev/null 2>&1 &)",
            ),
        ] {
            let left = place.path("work/left");
            let _absent = fs::remove_file(&left);
            let script = format!("{script}\nwhile [ ! -s left ]; do sleep 0.02; done; echo ok");
            let reply = call(place.sh(&script), place.context(20)).await;
            assert_eq!((reply.outcome, reply.content.as_str()), (ToolOutcome::Ok, "ok\n"), "{how}");
            assert!(!runs(pid_in(&left)), "{how}");
        }
    });
}

#[test]
fn at_the_limit_an_escaped_child_with_a_living_parent_is_killed_too() {
    tokio_uring::start(async {
        let place = Place::new();
        let script = "env -i setsid /bin/sh -c 'echo $$ > left; exec sleep 1000' & trap '' TERM; wait; wait; sleep 1000";
        let mut spec = place.sh(script);
        spec.seconds = Some(1);
        let reply = call(spec, place.context(20)).await;
        assert_eq!(reply.outcome, ToolOutcome::TimedOut);
        assert!(!runs(pid_in(&place.path("work/left"))));
    });
}

#[test]
fn a_background_child_that_holds_the_pipe_does_not_hang_the_call() {
    tokio_uring::start(async {
        let place = Place::new();
        let began = Instant::now();
        let reply = call(place.sh("sleep 1000 & echo $! > left; echo done"), place.context(60)).await;
        assert_eq!((reply.outcome, reply.content.as_str()), (ToolOutcome::Ok, "done\n"));
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert!(!runs(pid_in(&place.path("work/left"))));
        // one that floods the pipe for ever does not either
        let reply = call(place.sh("yes & echo $! > left; sleep 0.1"), place.context(60)).await;
        assert_eq!(reply.outcome, ToolOutcome::Ok);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        // and what a short-lived one still says is heard
        let reply = call(place.sh("(sleep 0.05; echo late) & echo early"), place.context(60)).await;
        assert_eq!(reply.content, "early\nlate\n");
    });
}

#[test]
fn cancelling_ends_it_and_says_that_the_effect_is_unknown() {
    tokio_uring::start(async {
        let place = Place::new();
        let context = place.context(60);
        let cancel = context.cancel.clone();
        let began = Instant::now();
        let pid = place.path("work/pid");
        let (reply, ()) =
            tokio::join!(call(place.sh("echo so far; echo $$ > pid; sleep 1000"), context), async {
                written(&pid).await;
                cancel.cancel();
            });
        assert_eq!(reply.outcome, ToolOutcome::Interrupted);
        assert!(reply.content.starts_with("tried was cancelled; what it did until then is unknown."));
        assert!(reply.content.ends_with("so far\n"));
        assert!(!runs(pid_in(&pid)));
        assert!(began.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn dropping_the_call_kills_all_of_it() {
    tokio_uring::start(async {
        let place = Place::new();
        let script = "env -i setsid /bin/sh -c 'echo $$ > left; exec sleep 1000' & echo $$ > pid; trap '' TERM; \
                      while :; do sleep 0.1; done";
        let (pid, left) = (place.path("work/pid"), place.path("work/left"));
        tokio::select! {
            _ = call(place.sh(script), place.context(60)) => panic!("it ended"),
            () = async { written(&pid).await; written(&left).await } => {}
        }
        gone(pid_in(&pid)).await;
        gone(pid_in(&left)).await;
    });
}

#[test]
fn the_thread_is_free_while_a_tool_runs() {
    tokio_uring::start(async {
        let place = Place::new();
        let mut longest = Duration::ZERO;
        let watch = async {
            loop {
                let began = Instant::now();
                tokio::time::sleep(Duration::from_millis(1)).await;
                longest = longest.max(began.elapsed());
            }
        };
        tokio::select! {
            biased;
            reply = call(place.sh("head -c 20000000 /dev/zero; sleep 2"), place.context(60)) => {
                assert_eq!(reply.outcome, ToolOutcome::Ok);
            }
            () = watch => {}
        }
        assert!(longest < Duration::from_secs(1), "{longest:?}");
    });
}

#[test]
fn ten_at_once_do_not_mix() {
    tokio_uring::start(async {
        let place = Place::new();
        let local = tokio::task::LocalSet::new();
        let mut calls = Vec::new();
        for n in 0..10 {
            let run = prepared(place.sh("sleep 0.0$(tr -dc 0-9); exec seq 20000"), &format!("{{\"n\":{n}}}"));
            let mut context = place.context(30);
            if let Some(spill) = context.spill.as_mut() {
                spill.stem = format!("call-{n}");
            }
            calls.push(local.spawn_local(run.run(context)));
        }
        local
            .run_until(async {
                for call in calls {
                    let reply = call.await.unwrap();
                    assert_eq!(reply.outcome, ToolOutcome::Ok);
                    assert!(reply.content.starts_with("1\n2\n") && reply.content.contains("20000\n"));
                }
            })
            .await;
        for n in 0..10 {
            assert_eq!(fs::metadata(place.path(&format!("spill/call-{n}.out"))).unwrap().len(), 108_894);
        }
    });
}

#[test]
fn a_killed_daemon_takes_the_running_tool_with_it() {
    const HOST: &str = "BOXMAKER_TEST_HOST";
    if let Some(dir) = std::env::var_os(HOST) {
        let work = PathBuf::from(dir);
        tokio_uring::start(async {
            let place = Place::new();
            let mut spec = place.sh("echo $$ > pid; trap '' TERM; while :; do sleep 0.1; done");
            spec.directory = work;
            call(spec, place.context(60)).await;
        });
        return;
    }
    tokio_uring::start(async {
        let place = Place::new();
        fs::create_dir(place.path("work")).unwrap();
        let mut host = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_daemon_takes_the_running_tool_with_it"])
            .env(HOST, place.path("work"))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = place.path("work/pid");
        written(&pid).await;
        assert!(runs(pid_in(&pid)));
        host.kill().unwrap();
        host.wait().unwrap();
        gone(pid_in(&pid)).await;
    });
}
