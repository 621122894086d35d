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
mod tool_support;

use std::fs;

use boxmaker::proto::ToolOutcome;
use boxmaker::tool::{CommandSpec, Reach, ToolReply, landlock_version};
use tool_support::{Place, call};

/// A folder with a secret, a folder to read and one to write.
fn place() -> Place {
    // not below /tmp only because a tool's usual place for such files is there too
    let place = Place::new();
    for name in ["home", "read", "write"] {
        fs::create_dir(place.path(name)).unwrap();
        fs::write(place.path(name).join("file"), name).unwrap();
    }
    place
}

fn walled(place: &Place) -> Reach {
    Reach { read: Some(vec![place.path("read")]), write: Some(vec![place.path("write")]), network: true }
}

async fn sh(place: &Place, script: &str, reach: Reach) -> ToolReply {
    call(CommandSpec { reach, ..place.sh(script) }, place.context(20)).await
}

async fn python(place: &Place, script: &str, reach: Reach) -> ToolReply {
    call(CommandSpec { reach, ..place.python(script) }, place.context(20)).await
}

/// Whether the kernel can do it at all; the tests machine's must.
fn kernel() {
    assert!(landlock_version() > 0, "this kernel has no Landlock");
}

#[test]
fn files_outside_are_out_of_reach_and_those_inside_are_not() {
    kernel();
    tokio_uring::start(async {
        let place = place();
        let dir = place.dir().display();
        let script = format!(
            "cd {dir}; cat read/file write/file; echo own > work/x && cat work/x; echo new > write/new && cat write/new; \
             mv write/new write/moved; echo $TMPDIR; echo gone > /dev/null; \
             for f in home/file; do cat $f; done; ls home; echo x > read/file; echo x > read/new; echo x > home/new; \
             rm home/file; ln home/file work/link; mv home/file work/; cat /etc/shadow; \
             sh -c 'cat home/file'; setsid cat home/file; true"
        );
        let reply = sh(&place, &script, walled(&place)).await;
        assert_eq!(reply.outcome, ToolOutcome::Ok, "{}", reply.content);
        let out = format!("readwriteown\nnew\n{dir}/work\n");
        assert_eq!(reply.content, out);
        assert_eq!(fs::read_to_string(place.path("home/file")).unwrap(), "home");
        assert_eq!(fs::read_to_string(place.path("read/file")).unwrap(), "read");
        assert!(!place.path("home/new").exists() && !place.path("read/new").exists());
        assert!(!place.path("work/link").exists() && place.path("write/moved").exists());
        // without walls the same tool reaches all of it
        let reply = sh(&place, &format!("cat {dir}/home/file"), Reach::default()).await;
        assert_eq!(reply.content, "home");
    });
}

#[test]
fn one_of_the_two_lists_is_enough_to_limit_files() {
    kernel();
    tokio_uring::start(async {
        let place = place();
        for reach in [
            Reach { read: Some(Vec::new()), ..Reach::default() },
            Reach { write: Some(Vec::new()), ..Reach::default() },
        ] {
            let reply = sh(&place, &format!("cat {}", place.path("read/file").display()), reach).await;
            assert_eq!(reply.outcome, ToolOutcome::Error, "{}", reply.content);
            assert!(reply.content.contains("Permission denied"), "{}", reply.content);
        }
    });
}

#[test]
fn a_path_that_is_not_there_is_told_and_nothing_runs() {
    kernel();
    tokio_uring::start(async {
        let place = place();
        let reach = Reach { read: Some(vec!["/no/such/place".into()]), ..Reach::default() };
        let reply = sh(&place, "echo ran", reach).await;
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
        let place = place();
        let reply = python(&place, SOCKETS, Reach { network: false, ..Reach::default() }).await;
        let expected =
            "inet refused\ninet6 refused\nunix refused\nnetlink refused\nring refused\npair made\n1\n";
        assert_eq!(reply.content, expected);
        let reply = python(&place, SOCKETS, Reach::default()).await;
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
        let place = place();
        let own = std::process::id();
        let script =
            format!("kill -0 {own} && echo signalled; cat /proc/{own}/environ >/dev/null && echo read; true");
        let reply = sh(&place, &script, Reach::default()).await;
        assert_eq!(reply.content, "signalled\nread\n", "without walls it can do both");
        let reply = sh(&place, &script, walled(&place)).await;
        assert!(
            !reply.content.contains("signalled") && !reply.content.contains("read\n"),
            "{}",
            reply.content
        );
    });
}

#[test]
fn a_link_in_a_place_that_the_tool_writes_widens_no_wall() {
    tokio_uring::start(async {
        let place = place();
        let top = place.path("top");
        fs::create_dir_all(top.join("work")).unwrap();
        fs::create_dir(place.path("elsewhere")).unwrap();
        let reach = Reach { read: None, write: Some(vec![top.clone()]), network: true };
        let spec = |script: &str| {
            let mut spec = place.sh(script);
            (spec.directory, spec.reach) = (top.join("work"), reach.clone());
            spec
        };
        let swap = format!(
            "cd .. && rmdir work && ln -s {} work && echo swapped",
            place.path("elsewhere").display()
        );
        let swapped = call(spec(&swap), place.context(10)).await;
        assert_eq!(swapped.content, "swapped\n");
        let next = call(spec("echo x > got-out"), place.context(10)).await;
        assert_eq!(next.outcome, ToolOutcome::Error, "{}", next.content);
        assert!(next.content.contains("out of") && next.content.contains("link"), "{}", next.content);
        assert!(!place.path("elsewhere/got-out").exists());
        // a link inside of it stays one
        fs::remove_file(top.join("work")).unwrap();
        fs::create_dir(top.join("real")).unwrap();
        std::os::unix::fs::symlink(top.join("real"), top.join("work")).unwrap();
        let inside = call(spec("echo x > here"), place.context(10)).await;
        assert_eq!(inside.outcome, ToolOutcome::Ok, "{}", inside.content);
    });
}

#[test]
fn a_tool_without_the_network_cannot_take_the_socket_of_another_process() {
    tokio_uring::start(async {
        let place = place();
        let script = "import ctypes,os\n\
                      libc = ctypes.CDLL(None, use_errno=True)\n\
                      for what in (lambda: libc.syscall(438, -1, 0, 0), lambda: libc.ptrace(0, 0, None, None),\n             \
                      lambda: libc.process_vm_writev(os.getppid(), None, 0, None, 0, 0)):\n    \
                      print(what(), os.strerror(ctypes.get_errno()))\n";
        let without = Reach { network: false, ..Reach::default() };
        let reply = python(&place, script, without).await;
        assert_eq!(reply.content, "-1 Permission denied\n".repeat(3));
    });
}
