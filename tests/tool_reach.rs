//! What a tool can reach: the kernel says no, to the tool and to all that it starts.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::string_slice,
    clippy::indexing_slicing
)]

#[allow(dead_code, reason = "only skip is used here")]
#[path = "support/parts.rs"]
mod parts;

use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use boxmaker::proto::ToolOutcome;
use boxmaker::tool::{
    CallContext, Cancel, CommandSpec, CommandTool, Installed, Policy, Prepared, Reach, Registry, Rlimits,
    ToolReply, landlock_version,
};
use serde_json::json;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// A folder with a secret, a folder to read and one to write.
    fn new() -> Self {
        // not below /tmp only because a tool's usual place for such files is there too
        let dir = tempfile::tempdir().unwrap();
        for name in ["home", "read", "write"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("file"), name).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn walled(&self) -> Reach {
        Reach { read: Some(vec![self.path("read")]), write: Some(vec![self.path("write")]), network: true }
    }

    async fn sh(&self, script: &str, reach: Reach) -> ToolReply {
        self.run("/bin/sh", &["-c", script], reach).await
    }

    async fn python(&self, script: &str, reach: Reach) -> ToolReply {
        self.run("/usr/bin/env", &["python3", "-c", script], reach).await
    }

    async fn run(&self, program: &str, args: &[&str], reach: Reach) -> ToolReply {
        let spec = CommandSpec {
            name: "tried".to_owned(),
            program: program.into(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            description: "A tool that is tried.".to_owned(),
            schema: json!({"type": "object"}),
            seconds: None,
            output_bytes: None,
            spill_bytes: None,
            directory: self.path("work"),
            environment: vec!["PATH".to_owned()],
            rlimits: Rlimits::default(),
            reach,
        };
        let installed = Installed { tool: Rc::new(CommandTool::new(spec)), policy: Policy::Allow };
        let context = CallContext {
            seconds: 20,
            output_bytes: 4096,
            spill: None,
            cancel: Cancel::new(),
            earlier: None,
        };
        match Registry::new(vec![installed]).unwrap().prepare("tried", "{}") {
            Prepared::Run(run) => run.run(context).await,
            Prepared::Answer(reply) => panic!("{}", reply.content),
        }
    }
}

/// Whether the kernel can do it at all; the tests machine's must.
fn kernel() {
    assert!(landlock_version() > 0, "this kernel has no Landlock");
}

#[test]
fn files_outside_are_out_of_reach_and_those_inside_are_not() {
    kernel();
    tokio_uring::start(async {
        let place = Place::new();
        let dir = place.dir.path().display();
        let script = format!(
            "cd {dir}; cat read/file write/file; echo own > work/x && cat work/x; echo new > write/new && cat write/new; \
             mv write/new write/moved; echo $TMPDIR; echo gone > /dev/null; \
             for f in home/file; do cat $f; done; ls home; echo x > read/file; echo x > read/new; echo x > home/new; \
             rm home/file; ln home/file work/link; mv home/file work/; cat /etc/shadow; \
             sh -c 'cat home/file'; setsid cat home/file; true"
        );
        let reply = place.sh(&script, place.walled()).await;
        assert_eq!(reply.outcome, ToolOutcome::Ok, "{}", reply.content);
        let out = format!("readwriteown\nnew\n{dir}/work\n");
        assert_eq!(reply.content, out);
        assert_eq!(fs::read_to_string(place.path("home/file")).unwrap(), "home");
        assert_eq!(fs::read_to_string(place.path("read/file")).unwrap(), "read");
        assert!(!place.path("home/new").exists() && !place.path("read/new").exists());
        assert!(!place.path("work/link").exists() && place.path("write/moved").exists());
        // without walls the same tool reaches all of it
        let reply = place.sh(&format!("cat {dir}/home/file"), Reach::default()).await;
        assert_eq!(reply.content, "home");
    });
}

#[test]
fn one_of_the_two_lists_is_enough_to_limit_files() {
    kernel();
    tokio_uring::start(async {
        let place = Place::new();
        for reach in [
            Reach { read: Some(Vec::new()), ..Reach::default() },
            Reach { write: Some(Vec::new()), ..Reach::default() },
        ] {
            let reply = place.sh(&format!("cat {}", place.path("read/file").display()), reach).await;
            assert_eq!(reply.outcome, ToolOutcome::Error, "{}", reply.content);
            assert!(reply.content.contains("Permission denied"), "{}", reply.content);
        }
    });
}

#[test]
fn a_path_that_is_not_there_is_told_and_nothing_runs() {
    kernel();
    tokio_uring::start(async {
        let place = Place::new();
        let reach = Reach { read: Some(vec!["/no/such/place".into()]), ..Reach::default() };
        let reply = place.sh("echo ran", reach).await;
        assert_eq!(reply.outcome, ToolOutcome::Error);
        assert!(reply.content.contains("could not be started: /no/such/place, which"), "{}", reply.content);
        assert!(!reply.content.contains("ran\n"));
    });
}

const SOCKETS: &str = "
import ctypes, socket, subprocess, sys
def tried(what, make):
    try:
        make(); print(what, 'made')
    except PermissionError:
        print(what, 'refused')
libc = ctypes.CDLL(None, use_errno=True)
def ring():
    if libc.syscall(425, 1, ctypes.create_string_buffer(256)) < 0:
        raise OSError(ctypes.get_errno(), 'x')
tried('inet', lambda: socket.socket(socket.AF_INET))
tried('inet6', lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
tried('unix', lambda: socket.socket(socket.AF_UNIX))
tried('netlink', lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
tried('ring', ring)
tried('pair', socket.socketpair)
print(subprocess.run([sys.executable, '-c', 'import socket; socket.socket()'], stderr=subprocess.DEVNULL).returncode)
";

#[test]
fn a_tool_without_the_network_has_no_socket_of_any_kind() {
    tokio_uring::start(async {
        let place = Place::new();
        let reply = place.python(SOCKETS, Reach { network: false, ..Reach::default() }).await;
        let expected =
            "inet refused\ninet6 refused\nunix refused\nnetlink refused\nring refused\npair made\n1\n";
        assert_eq!(reply.content, expected);
        let reply = place.python(SOCKETS, Reach::default()).await;
        assert!(
            reply.content.starts_with("inet made\n") && reply.content.ends_with("0\n"),
            "{}",
            reply.content
        );
    });
}

#[test]
fn a_walled_tool_cannot_signal_or_look_into_its_daemon() {
    if landlock_version() < 6 {
        return parts::skip("this kernel's Landlock is older than version 6 and does not hold signals back");
    }
    tokio_uring::start(async {
        let place = Place::new();
        let own = std::process::id();
        let script =
            format!("kill -0 {own} && echo signalled; cat /proc/{own}/environ >/dev/null && echo read; true");
        let reply = place.sh(&script, Reach::default()).await;
        assert_eq!(reply.content, "signalled\nread\n", "without walls it can do both");
        let reply = place.sh(&script, place.walled()).await;
        assert!(
            !reply.content.contains("signalled") && !reply.content.contains("read\n"),
            "{}",
            reply.content
        );
    });
}
