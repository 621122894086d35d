//! A request to stop, which many may wait for.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use tokio::sync::Notify;

/// Why a turn is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Somebody asked for it.
    Cancelled,
    /// The daemon ends.
    Shutdown,
}

/// How much longer what is under way may take once somebody has asked to stop.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    cancelled: Duration,
    shutdown: Duration,
}

impl Patience {
    /// After a cancel, somebody waits and the daemon goes on; at the daemon's end, what is left of
    /// `shutdown_seconds` is for the disk.
    #[must_use]
    pub fn new(shutdown_seconds: u64) -> Self {
        Self {
            cancelled: Duration::from_secs(3),
            shutdown: Duration::from_millis(shutdown_seconds.saturating_mul(250)),
        }
    }

    /// For this reason.
    #[must_use]
    pub fn after(self, reason: StopReason) -> Duration {
        match reason {
            StopReason::Cancelled => self.cancelled,
            StopReason::Shutdown => self.shutdown,
        }
    }
}

/// Set once, seen by all; the first reason stays.
#[derive(Debug, Default)]
pub struct Cancel {
    reason: Cell<Option<StopReason>>,
    notify: Notify,
}

impl Cancel {
    /// Asks to stop.
    pub fn stop(&self, reason: StopReason) {
        if self.reason.get().is_none() {
            self.reason.set(Some(reason));
        }
        self.notify.notify_waiters();
    }

    /// Whether, and why, somebody asked.
    pub fn reason(&self) -> Option<StopReason> {
        self.reason.get()
    }

    /// `work`, unless somebody asks to stop first; then that reason. For work of which nothing need be ended.
    ///
    /// # Errors
    /// Why it is to stop.
    pub async fn unless<T>(&self, work: impl Future<Output = T>) -> Result<T, StopReason> {
        tokio::select! {
            biased;
            reason = self.stopped() => Err(reason),
            done = work => Ok(done),
        }
    }

    /// Does `work` to its end, unless somebody has asked to stop and it takes too long then.
    pub async fn bound<T>(&self, patience: Patience, work: impl Future<Output = T>) -> Option<T> {
        let late = async {
            let reason = self.stopped().await;
            tokio::time::sleep(patience.after(reason)).await;
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = late => None,
        }
    }

    /// Returns when somebody has asked.
    pub async fn stopped(&self) -> StopReason {
        loop {
            let notified = self.notify.notified();
            if let Some(reason) = self.reason.get() {
                return reason;
            }
            notified.await;
        }
    }
}
