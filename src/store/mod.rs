//! Sessions on disk. (docs to come)

mod baseline;
mod catalog;
mod create;
mod error;
mod inspect;
mod kept;
mod log;
mod read;
mod recover;
mod repair;
mod scan;
mod session;
mod slot;
mod storage;
mod uring;
mod walk;

pub use baseline::{Baseline, MAX_BASELINE_BYTES};
pub use catalog::Catalog;
pub use error::{BaselineError, Result, SessionError};
pub use inspect::Inspected;
pub use kept::{Kept, new_name};
pub use recover::Recovered;
pub use repair::{Cut, Remedy};
pub use session::{MAX_RECORD_BYTES, OpenOptions, Session, StoreLimits, TornTail};
pub use slot::SlotFiles;
pub use storage::{Access, Appended, Entry, Kind, Storage, StorageFile};
pub use uring::{RingError, Uring, UringFile, ignore_sigxfsz, oldest_sync_age};
