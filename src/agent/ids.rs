//! The ids that a stream left out, read back exactly.

use crate::model::{ModelError, Server, Special};
use crate::proto::TokenId;
use crate::store::SlotFiles;

use super::cancel::{Cancel, Patience};
use super::completion::Gap;

/// The sampled ids, and whether they are the ones that the slot's cache holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ids {
    /// They are.
    Exact(Vec<TokenId>),
    /// They could not be read back, for this reason: in each gap stand the ids of its text instead, so
    /// that the conversation is right, and from the first of them on the cache does not match.
    Replaced(Vec<TokenId>, String),
}

impl Ids {
    /// The ids, either way.
    pub fn into_ids(self) -> Vec<TokenId> {
        match self {
            Self::Exact(ids) | Self::Replaced(ids, _) => ids,
        }
    }
}

/// From where ids are read back.
#[derive(Clone, Copy)]
pub struct ReadBack<'a> {
    /// The server that saves its slot.
    pub server: &'a Server,
    /// Where it saves it; absent when that is not known.
    pub files: Option<&'a SlotFiles>,
    /// The file's name.
    pub name: &'a str,
}

/// Fills the gaps of `ids`, which were sampled after `prompt`. Saving a slot may take minutes: when somebody
/// asks to stop, it is given up in time for the turn's end.
///
/// # Errors
/// Only when the model server cannot even tokenise the text of a gap.
pub async fn resolve(
    from: ReadBack<'_>,
    prompt: &[TokenId],
    ids: Vec<Option<TokenId>>,
    gaps: &[Gap],
    (cancel, patience): (&Cancel, Patience),
) -> Result<Ids, ModelError> {
    let ReadBack { server, files, name } = from;
    if let Some(whole) = ids.iter().copied().collect::<Option<Vec<_>>>() {
        return Ok(Ids::Exact(whole));
    }
    let why = match files {
        None => "[model] slot_dir is not set; set it to the server's --slot-save-path".to_owned(),
        Some(files) => {
            let reading = read_back(server, files, name, prompt, &ids);
            match cancel.bound(patience, reading).await {
                Some(Ok(whole)) => return Ok(Ids::Exact(whole)),
                Some(Err(why)) => why,
                None => "the turn was stopped, and the server took too long to save its slot".to_owned(),
            }
        }
    };
    let mut whole = Vec::with_capacity(ids.len());
    let mut at = 0usize;
    for gap in gaps {
        whole.extend(ids.iter().take(gap.at).skip(at).flatten());
        let text = cancel.bound(patience, server.tokenize(&gap.text, Special::Plain)).await;
        whole.extend(text.unwrap_or_else(|| Err(server.stream_cut()))?);
        at = gap.at.saturating_add(gap.lost).saturating_add(gap.had);
    }
    whole.extend(ids.iter().skip(at).flatten());
    Ok(Ids::Replaced(whole, why))
}

/// Saves the slot and takes the ids from the file's header, if they agree with all that is known.
async fn read_back(
    server: &Server,
    files: &SlotFiles,
    name: &str,
    prompt: &[TokenId],
    ids: &[Option<TokenId>],
) -> Result<Vec<TokenId>, String> {
    server.save_slot(name).await.map_err(|e| e.to_string())?;
    let read = files.read_ids(name).await.map_err(|e| e.to_string());
    // the file has served its purpose, whatever it held
    let removed = files.remove(name).await.map_err(|e| e.to_string());
    let held = read?;
    removed?;
    let sampled = held.strip_prefix(prompt).ok_or("the slot holds another prompt")?;
    let mut whole = Vec::with_capacity(ids.len());
    for (index, known) in ids.iter().enumerate() {
        match (known, sampled.get(index)) {
            (Some(known), Some(held)) if known != held => return Err("the slot holds other ids".to_owned()),
            (Some(known), _) => whole.push(*known),
            (None, Some(held)) => whole.push(*held),
            // a limit fell into a character: its last token so far was sampled, but never evaluated nor
            // shown, so without it the list is what the cache holds and the text what the user saw
            (None, None) if index.saturating_add(1) == ids.len() => {}
            (None, None) => return Err("the slot holds fewer ids than were sampled".to_owned()),
        }
    }
    Ok(whole)
}
