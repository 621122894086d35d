//! What a server writes, bounded: the SDK would read on for ever where nothing sensible comes.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

/// How much of a line that is no message is kept, to show it.
const KEPT_BYTES: usize = 160;

/// What was noticed in a server's output.
#[derive(Debug, Default)]
pub struct Noticed {
    /// A line was longer than the limit, in bytes: nothing more was read.
    pub too_long: Option<usize>,
    /// The beginning of the last line that cannot be a message.
    pub garbage: Option<String>,
}

/// Shared with the task that reads.
pub type Notes = Arc<Mutex<Noticed>>;

/// What was noticed so far, in words; empty when nothing was.
pub fn words(notes: &Notes) -> String {
    let noticed = notes.lock().unwrap_or_else(PoisonError::into_inner);
    match (noticed.too_long, &noticed.garbage) {
        (Some(limit), _) => format!(": it sent a message of more than {limit} bytes"),
        (None, Some(garbage)) => {
            format!(": it wrote what is no message of the protocol on its standard output: {garbage:?}")
        }
        (None, None) => String::new(),
    }
}

/// Forgets the line that is no message.
pub fn forget(notes: &Notes) {
    notes.lock().unwrap_or_else(PoisonError::into_inner).garbage = None;
}

/// Passes a server's output on, line by line bounded.
pub struct Bounded<R> {
    inner: R,
    limit: usize,
    line: usize,
    start: Vec<u8>,
    notes: Notes,
}

impl<R> Bounded<R> {
    /// Lines of up to `limit` bytes; what is noticed goes into `notes`.
    pub fn new(inner: R, limit: usize, notes: Notes) -> Self {
        Self { inner, limit, line: 0, start: Vec::new(), notes }
    }

    /// Takes bytes into account; whether they may be passed on.
    fn take(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let end = memchr::memchr(b'\n', bytes);
            let (piece, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            self.line = self.line.saturating_add(piece.len());
            let room = KEPT_BYTES.saturating_sub(self.start.len());
            self.start.extend_from_slice(piece.get(..room.min(piece.len())).unwrap_or_default());
            if self.line > self.limit {
                self.notes.lock().unwrap_or_else(PoisonError::into_inner).too_long = Some(self.limit);
                return false;
            }
            if end.is_some() {
                let text = String::from_utf8_lossy(&self.start);
                let text = text.trim();
                if !text.is_empty() && !text.starts_with(['{', '[']) {
                    let mut noticed = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
                    noticed.garbage = Some(text.to_owned());
                }
                self.start.clear();
                self.line = 0;
            }
            bytes = rest.get(1..).unwrap_or_default();
        }
        true
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Bounded<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.inner).poll_read(cx, buffer) {
            Poll::Ready(Ok(())) => {}
            other => return other,
        }
        let new = buffer.filled().get(before..).unwrap_or_default();
        if self.take(new) {
            Poll::Ready(Ok(()))
        } else {
            buffer.set_filled(before);
            Poll::Ready(Err(io::ErrorKind::InvalidData.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    async fn read(input: &[u8], limit: usize) -> (io::Result<usize>, String) {
        let notes = Notes::default();
        let mut reader = Bounded::new(input, limit, Arc::clone(&notes));
        let mut all = Vec::new();
        let read = reader.read_to_end(&mut all).await;
        (read, words(&notes))
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_line_that_is_too_long_ends_the_reading_and_garbage_is_remembered() {
        let (read_all, noticed) = read(b"{\"a\":1}\n\n  [1]\n", 10).await;
        assert_eq!((read_all.unwrap(), noticed.as_str()), (15, ""));
        let (read_all, noticed) = read(b"starting up\n{}\n", 20).await;
        assert!(read_all.is_ok() && noticed.contains("\"starting up\""), "{noticed}");
        let (failed, noticed) = read(b"{\"a\": \"0123456789\"}\n", 10).await;
        assert!(failed.is_err() && noticed.contains("more than 10 bytes"), "{noticed}");
        let (failed, _) = read(&[b'x'; 100_000], 99_999).await;
        assert!(failed.is_err());
    }
}
