//! Sessions on disk: `<home>/sessions/<id>/N.baseline.json` and `N.jsonl`, and nothing else that counts.
//!
//! | file | its one job |
//! |---|---|
//! | `storage` | the seam: what is asked of a disk |
//! | `uring` | the real disk, through io_uring |
//! | `baseline` | what is frozen before the first message |
//! | `read`, `checked`, `scan` | the one reader of logs, which tells a torn end from damage in the middle |
//! | `walk` | a session's epochs, read in order as one chain |
//! | `log` | the writing end of a log: write, sync, or cut back |
//! | `create`, `session` | one session: made durably, opened, appended to |
//! | `epoch` | the next epoch: begun so that it is there whole or not at all |
//! | `catalog`, `inspect`, `search` | all sessions: list, resolve, page, delete; find what was said |
//! | `known` | what was read of sessions, as long as their files stay the same |
//! | `repair`, `recover` | the ways out of damage, only when asked |
//! | `fork`, `copy` | a new session from the records of another |
//! | `slot` | the ids in a slot that the model server saved |
//!
//! Invariants:
//! - A record is in memory only when it is on the disk, synced. What a killed process left unsynced is
//!   synced at open, before anybody is shown it.
//! - A failed sync poisons the log: nothing more is written before a fresh open has read back what the
//!   disk holds, not what the page cache remembers.
//! - An operation in flight is never dropped: operations are tasks of their own, and an append whose caller
//!   went away ends, and is waited for by the next.
//! - One append is in flight a log, so whatever follows an append's end proves that it was acknowledged.
//!   Only bytes of one last, unfinished append are ever cut away, and they are saved first.
//! - Opening, listing and showing write nothing.
//! - Nothing blocks the runtime's thread, and no socket is touched.

mod baseline;
mod catalog;
mod checked;
mod copy;
mod create;
mod epoch;
mod error;
mod fork;
mod inspect;
mod kept;
mod known;
mod log;
mod options;
mod page;
mod read;
mod recover;
mod repair;
mod room;
mod scan;
mod search;
mod session;
mod slot;
mod storage;
mod uring;
mod walk;

pub use baseline::{Baseline, MAX_BASELINE_BYTES};
pub use catalog::Catalog;
pub use epoch::Earlier;
pub use error::{BaselineError, Result, SessionError};
pub use inspect::Inspected;
pub use kept::{Kept, common, new_name};
pub use options::{MAX_RECORD_BYTES, OpenOptions, StoreLimits, TornTail};
pub use recover::Recovered;
pub use repair::{Cut, Remedy};
pub use search::Found;
pub use session::Session;
pub use slot::SlotFiles;
pub use storage::{Access, Appended, Entry, Kind, Misplaced, Stamp, Storage, StorageFile};
pub use uring::{RingError, Uring, UringFile, ignore_sigxfsz, oldest_sync_age};
