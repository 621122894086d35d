//! Sessions on disk. (docs to come)

mod baseline;
mod catalog;
mod create;
mod error;
mod inspect;
mod log;
mod read;
mod repair;
mod scan;
mod session;
mod slot_files;
mod storage;
mod uring;
mod walk;

pub use baseline::{Baseline, MAX_BASELINE_BYTES};
pub use catalog::Catalog;
pub use error::{BaselineError, Result, SessionError};
pub use inspect::Inspected;
pub use repair::{Cut, Remedy};
pub use session::{MAX_RECORD_BYTES, OpenOptions, Session, StoreLimits, TornTail};
pub use slot_files::SlotFiles;
pub use storage::{Access, Appended, Entry, Kind, Storage, StorageFile};
pub use uring::{RingError, Uring, UringFile, ignore_sigxfsz, oldest_sync_age};
