//! The home's lock, the socket's file, and what a client is told when nobody answers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod channel_support;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use boxmaker::channel::{
    ChannelError, ChannelLimits, Client, ClientError, HomeLock, Listener, MAX_PATH_BYTES,
};
use channel_support::{Daemon, run};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_home_has_one_holder_who_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("a/home");
    let link = dir.path().join("link");
    symlink(&home, &link).unwrap();
    let lock = HomeLock::take(&home).unwrap();
    assert_eq!((mode(&home), mode(lock.path())), (0o700, 0o600));
    for path in [&home, &link, &home.join("../home")] {
        let refused = HomeLock::take(path).unwrap_err();
        let said = refused.to_string();
        let ChannelError::HomeHeld { holder: Some(holder), .. } = refused else { panic!("{said}") };
        assert_eq!(holder.pid, std::process::id());
        assert!(said.contains(&format!("pid {}, since 20", holder.pid)), "{said}");
    }
    let before = fs::read_to_string(lock.path()).unwrap();
    assert_eq!(before.lines().count(), 2, "a refused one writes nothing");
    drop(lock);
    HomeLock::take(&link).unwrap();
}

#[test]
fn removing_the_lock_file_lets_nobody_in() {
    let dir = tempfile::tempdir().unwrap();
    let lock = HomeLock::take(dir.path()).unwrap();
    fs::remove_file(lock.path()).unwrap();
    let refused = HomeLock::take(dir.path()).unwrap_err();
    assert!(matches!(refused, ChannelError::HomeHeld { .. }), "{refused}");
    drop(lock);
    HomeLock::take(dir.path()).unwrap();
}

#[test]
fn a_lock_file_without_content_or_with_a_long_one_harms_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("loopd.lock");
    fs::write(&file, "x".repeat(100_000)).unwrap();
    let lock = HomeLock::take(dir.path()).unwrap();
    assert!(fs::metadata(&file).unwrap().len() < 100);
    fs::write(&file, "").unwrap();
    let refused = HomeLock::take(dir.path()).unwrap_err();
    assert!(matches!(refused, ChannelError::HomeHeld { holder: None, .. }), "{refused}");
    drop(lock);
    // a link in its place could lead anywhere
    fs::remove_file(&file).unwrap();
    symlink(dir.path().join("elsewhere"), &file).unwrap();
    assert!(matches!(HomeLock::take(dir.path()).unwrap_err(), ChannelError::Lock { .. }));
    assert!(!dir.path().join("elsewhere").exists());
}

#[test]
fn the_socket_of_a_killed_daemon_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let lock = HomeLock::take(dir.path()).unwrap();
    let path = dir.path().join("loopd.sock");
    drop(UnixListener::bind(&path).unwrap());
    let stale = fs::metadata(&path).unwrap().ino();
    let listener = Listener::bind(&path, &lock).unwrap();
    UnixStream::connect(&path).unwrap();
    assert_eq!((mode(&path), listener.path()), (0o660, Some(path.as_path())));
    drop(listener);
    assert!(!path.exists(), "inode {stale}");
}

#[test]
fn nothing_but_a_stale_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let lock = HomeLock::take(dir.path()).unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "precious").unwrap();
    fs::create_dir(at("directory")).unwrap();
    drop(UnixListener::bind(at("stale.sock")).unwrap());
    symlink(at("stale.sock"), at("link")).unwrap();
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, what) in
        [("file", "a file"), ("directory", "a directory"), ("link", "a symbolic link"), ("pipe", "something")]
    {
        let refused = Listener::bind(&at(name), &lock).unwrap_err();
        assert!(matches!(refused, ChannelError::NotASocket { .. }), "{refused}");
        assert!(refused.to_string().contains(&format!("there is {what}, not a socket")), "{refused}");
        assert!(fs::symlink_metadata(at(name)).is_ok(), "{name} is gone");
    }
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "precious");
    assert!(at("stale.sock").exists());
    // of a daemon with another home
    let living = UnixListener::bind(at("living.sock")).unwrap();
    let refused = Listener::bind(&at("living.sock"), &lock).unwrap_err();
    assert!(matches!(refused, ChannelError::InUse { .. }), "{refused}");
    UnixStream::connect(at("living.sock")).unwrap();
    drop(living);
    let refused = Listener::bind(&at("nowhere/loopd.sock"), &lock).unwrap_err().to_string();
    assert!(refused.contains("the socket's directory is not there"), "{refused}");
}

#[test]
fn a_socket_that_is_not_ours_any_more_stays() {
    let dir = tempfile::tempdir().unwrap();
    let lock = HomeLock::take(dir.path()).unwrap();
    let path = dir.path().join("loopd.sock");
    let listener = Listener::bind(&path, &lock).unwrap();
    fs::rename(&path, dir.path().join("moved")).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    drop(listener);
    UnixStream::connect(&path).unwrap();
    drop(other);
}

#[test]
fn a_path_has_at_most_107_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let lock = HomeLock::take(dir.path()).unwrap();
    let fill = |bytes: usize| {
        let rest = bytes - dir.path().as_os_str().len() - 1;
        dir.path().join("s".repeat(rest))
    };
    let (fits, long) = (fill(MAX_PATH_BYTES), fill(MAX_PATH_BYTES + 1));
    let listener = Listener::bind(&fits, &lock).unwrap();
    UnixStream::connect(&fits).unwrap();
    drop(listener);
    let refused = Listener::bind(&long, &lock).unwrap_err();
    assert!(matches!(refused, ChannelError::PathTooLong { bytes: 108, .. }), "{refused}");
    assert!(refused.to_string().contains("at most 107 bytes, this one has 108"), "{refused}");
    run(async {
        let refused = Client::connect(&long).await.unwrap_err();
        assert!(matches!(refused, ClientError::NoDaemon(..)), "{refused}");
        assert!(refused.to_string().contains("at most 107 bytes"), "{refused}");
    });
}

#[test]
fn only_a_listening_unix_stream_socket_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("handed.sock");
    let says = |fd: OwnedFd| Listener::from_fd(fd).unwrap_err().to_string();
    assert!(says(fs::File::open("/dev/null").unwrap().into()).contains("not a socket"));
    assert!(says(UnixStream::pair().unwrap().0.into()).contains("does not listen"));
    assert!(says(UnixDatagram::unbound().unwrap().into()).contains("not a stream socket"));
    if let Ok(tcp) = std::net::TcpListener::bind("127.0.0.1:0") {
        assert!(says(tcp.into()).contains("not a Unix socket"));
    }
    let listener = Listener::from_fd(UnixListener::bind(&path).unwrap().into()).unwrap();
    assert_eq!(listener.path(), None);
    drop(listener);
    assert!(path.exists(), "who made it removes it");
}

#[test]
fn a_client_is_told_what_to_do_when_nobody_answers() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("loopd.sock");
        let says = async || {
            let refused = Client::connect_as(&path, "test", Duration::from_millis(100)).await.unwrap_err();
            (refused.to_string(), matches!(refused, ClientError::NoDaemon(..)))
        };
        let (said, none) = says().await;
        assert!(none && said.contains("there is no such socket; start it with"), "{said}");
        let listener = UnixListener::bind(&path).unwrap();
        let (said, none) = says().await;
        assert!(!none && said.contains("has not answered for 100ms"), "{said}");
        drop(listener);
        let (said, none) = says().await;
        assert!(none && said.contains("nobody listens on the socket"), "{said}");
    });
}

/// A daemon that says one thing, whatever it is asked.
async fn says(answer: &str) -> ClientError {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loopd.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let answering = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes()).await.unwrap();
    };
    let (client, ()) = tokio::join!(Client::connect(&path), answering);
    client.unwrap_err()
}

#[test]
fn a_client_understands_a_daemon_that_it_does_not_fit() {
    run(async {
        let version = says(
            "{\"id\":1,\"ok\":{\"reply\":\"hello\",\"version\":9,\"daemon\":\"loopd 9\",\"run\":\"r\"}}\n",
        );
        assert!(
            matches!(version.await, ClientError::Version { client: 1, message } if message.contains("loopd 9"))
        );
        let version = says("{\"id\":1,\"error\":{\"code\":\"version\",\"message\":\"only 9\"}}\n");
        assert!(matches!(version.await, ClientError::Version { message, .. } if message == "only 9"));
        assert!(matches!(says("").await, ClientError::Closed));
        assert!(matches!(says("HTTP/1.1 400 Bad Request\r\n").await, ClientError::NotUnderstood(_)));
    });
}

#[test]
fn a_client_notices_that_the_daemon_is_gone() {
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let mut client = daemon.client().await;
        let (ended, _home) = daemon.stop();
        let next = tokio::time::timeout(Duration::from_secs(5), client.next_event()).await.unwrap();
        assert!(matches!(next, Err(ClientError::Closed)));
        assert!(matches!(client.request(boxmaker::proto::Request::List {}).await, Err(ClientError::Closed)));
        ended.await.unwrap();
    });
}
