//! What is written beside a saved slot.

use serde::{Deserialize, Serialize};

use super::{Digest, Epoch, ModelIdentity, SessionId, Timestamp};

/// The content of `<stem>.json` beside `<stem>.kv`: what must be true of the file, and of the server, before
/// the file may be given back to it. A server aborts on a truncated file, and a failed restore wipes the slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotManifest {
    /// [`SlotManifest::FORMAT`].
    pub format: u32,
    /// The session whose tokens it holds.
    pub session: SessionId,
    /// The epoch whose ids they are: another one of the session begins with others.
    pub epoch: Epoch,
    /// When it was saved.
    pub saved: Timestamp,
    /// The file's length in bytes.
    pub bytes: u64,
    /// The file's SHA-256.
    pub sha256: Digest,
    /// How many tokens it holds.
    pub tokens: u64,
    /// The slot it came from.
    pub slot: u32,
    /// The model and the server's build: another one cannot read it.
    pub model: ModelIdentity,
}

impl SlotManifest {
    /// The version of this form.
    pub const FORMAT: u32 = 2;

    /// Why a server with this model cannot take the file back.
    #[must_use]
    pub fn differs(&self, served: &ModelIdentity) -> Option<String> {
        let ModelIdentity { file, size, template_digest: _, n_ctx: _, n_vocab, build, alias: _, url: _, api } =
            served;
        let same =
            (&self.model.api, &self.model.file, self.model.size, self.model.n_vocab, &self.model.build)
                == (api, file, *size, *n_vocab, build);
        (!same).then(|| {
            format!(
                "it was saved by {} with {}, the server is {build} with {file}",
                self.model.build, self.model.file
            )
        })
    }
}
