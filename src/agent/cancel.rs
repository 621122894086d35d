//! A request to stop, which many may wait for.

use std::cell::Cell;

use tokio::sync::Notify;

/// Why a turn is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Somebody asked for it.
    Cancelled,
    /// The daemon ends.
    Shutdown,
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
