//! A signal that a call is no longer wanted.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::Notify;

/// Tells a running call to end. Clones share one state; once cancelled, it stays so.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Rc<State>);

#[derive(Debug, Default)]
struct State {
    cancelled: Cell<bool>,
    changed: Notify,
}

impl Cancel {
    /// Not cancelled yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels; a second time does nothing.
    pub fn cancel(&self) {
        self.0.cancelled.set(true);
        self.0.changed.notify_waiters();
    }

    /// Whether somebody has cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.get()
    }

    /// Returns when somebody cancels, at once when somebody has.
    pub async fn cancelled(&self) {
        let mut changed = std::pin::pin!(self.0.changed.notified());
        // registered before the flag is read, so that no signal falls between the two
        changed.as_mut().enable();
        if !self.is_cancelled() {
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn is_heard_before_and_after_the_wait_begins() {
        let cancel = Cancel::new();
        cancel.cancel();
        cancel.cancelled().await;
        let cancel = Cancel::new();
        let other = cancel.clone();
        tokio::join!(cancel.cancelled(), async {
            tokio::task::yield_now().await;
            other.cancel();
        });
        assert!(cancel.is_cancelled());
    }
}
