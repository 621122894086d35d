//! Bytes into lines: split at 0x0A only, and bounded.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes asked of the socket at once.
const CHUNK: usize = 8 << 10;
/// An emptied buffer that has grown larger than this is given back.
const KEPT: usize = 64 << 10;

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A line, without its newline.
    Line(BytesMut),
    /// A line of more bytes than allowed. There is no way on from here.
    TooLong,
    /// The end, after so many bytes of a line without a newline.
    End(usize),
}

/// Reads lines of at most `limit` bytes; holds no more than `limit` and a chunk.
pub(super) struct Lines<R> {
    from: R,
    limit: usize,
    buffer: BytesMut,
    /// How much of the buffer is known to have no newline.
    searched: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(from: R, limit: usize) -> Self {
        Self { from, limit, buffer: BytesMut::new(), searched: 0 }
    }

    /// The next line. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> io::Result<Next> {
        loop {
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(at) = memchr::memchr(b'\n', unsearched) {
                let length = self.searched.saturating_add(at);
                let mut line = self.buffer.split_to(length.saturating_add(1));
                self.searched = 0;
                if self.buffer.is_empty() && self.buffer.capacity() > KEPT {
                    self.buffer = BytesMut::new();
                }
                line.truncate(length);
                return Ok(if length > self.limit { Next::TooLong } else { Next::Line(line) });
            }
            self.searched = self.buffer.len();
            if self.searched > self.limit {
                return Ok(Next::TooLong);
            }
            self.buffer.reserve(CHUNK);
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                return Ok(Next::End(self.buffer.len()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(bytes: &[u8], limit: usize) -> Vec<Next> {
        let mut lines = Lines::new(bytes, limit);
        let mut found = Vec::new();
        loop {
            let next = lines.next().await.unwrap();
            let last = !matches!(next, Next::Line(_));
            found.push(next);
            if last {
                return found;
            }
        }
    }

    fn line(text: &str) -> Next {
        Next::Line(BytesMut::from(text.as_bytes()))
    }

    #[tokio::test]
    async fn splits_at_newlines_only() {
        let text = "a\u{2028}b\u{85}\r\n\n\0\x0b\x0c\nc";
        let expected = vec![line("a\u{2028}b\u{85}\r"), line(""), line("\0\x0b\x0c"), Next::End(1)];
        assert_eq!(all(text.as_bytes(), 100).await, expected);
    }

    #[tokio::test]
    async fn the_limit_is_exact() {
        assert_eq!(all(b"1234\n12345\n", 4).await, vec![line("1234"), Next::TooLong]);
        assert_eq!(all(b"12345", 4).await, vec![Next::TooLong]);
        assert_eq!(all(b"1234", 4).await, vec![Next::End(4)]);
    }

    #[tokio::test]
    async fn an_endless_line_holds_no_more_than_the_limit_and_a_chunk() {
        let mut lines = Lines::new(tokio::io::repeat(b'x'), 100_000);
        assert_eq!(lines.next().await.unwrap(), Next::TooLong);
        assert!(lines.buffer.len() <= 100_000 + 2 * KEPT, "{}", lines.buffer.len());
    }

    #[tokio::test]
    async fn lines_arrive_whole_from_single_bytes() {
        let one_by_one = tokio_test_reader(b"{\"a\":1}\nsecond\n");
        let mut lines = Lines::new(one_by_one, 100);
        assert_eq!(lines.next().await.unwrap(), line("{\"a\":1}"));
        assert_eq!(lines.next().await.unwrap(), line("second"));
        assert_eq!(lines.next().await.unwrap(), Next::End(0));
    }

    /// Gives one byte a read.
    fn tokio_test_reader(bytes: &'static [u8]) -> impl AsyncRead + Unpin {
        struct OneByOne(&'static [u8]);
        impl AsyncRead for OneByOne {
            fn poll_read(
                mut self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<io::Result<()>> {
                if let Some((first, rest)) = self.0.split_first() {
                    buffer.put_slice(&[*first]);
                    self.0 = rest;
                }
                std::task::Poll::Ready(Ok(()))
            }
        }
        OneByOne(bytes)
    }
}
