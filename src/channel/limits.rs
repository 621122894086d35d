//! The bounds of the channel.

use std::time::Duration;

/// Every bound of the channel. What is over one is answered in words or turned into a snapshot; it never
/// makes memory grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Clients at once; one more gets an error and is closed.
    pub clients: usize,
    /// Bytes of one line of a client, without its newline; a longer one gets an error and is closed.
    pub message_bytes: usize,
    /// Requests of one client without a written answer; while there are so many, no more are read.
    pub in_flight: usize,
    /// Sessions that one client may be attached to; one more is refused.
    pub attached: usize,
    /// Events waiting for one client; beyond it, a session's are replaced by a snapshot.
    pub queued_events: usize,
    /// Bytes of events waiting for one client; beyond it, a session's are replaced by a snapshot. A
    /// single longer event still goes to a client with none waiting.
    pub queued_bytes: usize,
    /// Events of a session that are kept for clients that come back.
    pub recent_events: usize,
    /// Bytes of a session's events that are kept for clients that come back.
    pub recent_bytes: usize,
    /// Sessions without a turn and without clients whose recent events are still kept.
    pub idle_sessions: usize,
    /// Bytes of a running completion's text, and of its reasoning, in a snapshot; of more, the beginning
    /// is left out and marked so.
    pub snapshot_bytes: usize,
    /// How long a client may take to say hello; then it is told so and closed, and its place is free.
    pub hello: Duration,
    /// How long the end of [`serve`](super::serve), and of a connection, waits for unfinished answers
    /// and for clients to read theirs.
    pub flush: Duration,
}

impl Default for ChannelLimits {
    fn default() -> Self {
        Self {
            clients: 32,
            message_bytes: 1 << 20,
            in_flight: 8,
            attached: 64,
            queued_events: 1024,
            queued_bytes: 512 << 10,
            recent_events: 1024,
            recent_bytes: 256 << 10,
            idle_sessions: 4,
            snapshot_bytes: 256 << 10,
            hello: Duration::from_secs(10),
            flush: Duration::from_secs(2),
        }
    }
}
