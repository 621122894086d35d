//! The slot of the server that is ours: what it does, what its cache holds, and the files that it is saved to.

use std::time::Duration;

use hyper::Method;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::error::ModelError;
use super::props::SlotState;
use super::server::{FIRST_PAUSE, LONGEST_PAUSE, Server};

/// How long the server may take to write or read a slot's file: gigabytes, on a slow disk.
pub const SLOT_FILE_SILENCE: Duration = Duration::from_secs(1800);

/// A slot's cache, written to a file by the server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct SavedSlot {
    /// The file's name in the server's folder for slots.
    pub filename: String,
    /// Tokens that were saved.
    pub n_saved: u64,
    /// Bytes that were written.
    pub n_written: u64,
}

/// Names a file in the server's folder of slots.
#[derive(Serialize)]
struct InFolder<'a> {
    filename: &'a str,
}

impl Server {
    /// Waits until our slot does nothing, as long as it takes; drop the future to give up. A server that
    /// hides its slots counts as idle, since it queues requests.
    ///
    /// # Errors
    /// The server cannot be asked, or answers nonsense.
    pub async fn wait_idle(&self) -> Result<(), ModelError> {
        let mut pause = FIRST_PAUSE;
        while self.slot_state().await?.is_some_and(|slot| slot.is_processing) {
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    /// How many tokens our slot's cache holds, as the server counts: none before it was first used. `None` when the
    /// server hides its slots.
    ///
    /// # Errors
    /// The server cannot be asked, or answers nonsense.
    pub async fn slot_tokens(&self) -> Result<Option<u64>, ModelError> {
        Ok(self.slot_state().await?.map(|slot| slot.n_prompt_tokens.unwrap_or(0)))
    }

    pub(super) async fn slot_state(&self) -> Result<Option<SlotState>, ModelError> {
        match self.slots().await {
            Ok(slots) => Ok(slots.into_iter().find(|slot| slot.id == u64::from(self.slot))),
            Err(ModelError::Unsupported { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) async fn slots(&self) -> Result<Vec<SlotState>, ModelError> {
        let body = self.endpoint.fetch(Method::GET, "/slots", Vec::new(), self.silence).await?;
        serde_json::from_slice(&body).map_err(|e| self.endpoint.garbage("/slots", e.to_string()))
    }

    /// Has the server write our slot's cache to a new file of this name, in its own folder. The file is
    /// whole and on disk only when the caller has checked and synced it.
    ///
    /// # Errors
    /// The server cannot be asked, or has no folder for slots ([`ModelError::Unsupported`]).
    pub async fn save_slot(&self, name: &str) -> Result<SavedSlot, ModelError> {
        self.slot_action("save", &InFolder { filename: name }, SLOT_FILE_SILENCE.max(self.silence)).await
    }

    /// Has the server read our slot's cache back from a file of its own folder; gives the number of tokens.
    /// That it holds them is known only when the next completion's first progress says so.
    ///
    /// The file must be whole: the server aborts on a truncated one, and when it refuses a file, the slot is
    /// empty.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses.
    pub async fn restore_slot(&self, name: &str) -> Result<u64, ModelError> {
        #[derive(Deserialize)]
        struct Restored {
            n_restored: u64,
        }
        let silence = SLOT_FILE_SILENCE.max(self.silence);
        let restored: Restored = self.slot_action("restore", &InFolder { filename: name }, silence).await?;
        Ok(restored.n_restored)
    }

    /// Has the server empty our slot's cache.
    ///
    /// # Errors
    /// The server cannot be asked, or has no folder for slots ([`ModelError::Unsupported`]).
    pub async fn erase_slot(&self) -> Result<(), ModelError> {
        #[derive(Serialize)]
        struct Nothing {}
        self.slot_action::<_, serde_json::Value>("erase", &Nothing {}, self.silence).await.map(drop)
    }

    async fn slot_action<B: Serialize, A: for<'de> Deserialize<'de>>(
        &self,
        action: &str,
        body: &B,
        silence: Duration,
    ) -> Result<A, ModelError> {
        self.post(&format!("/slots/{}?action={action}", self.slot), body, silence).await
    }
}
