//! Its tokenizer.

use serde_json::Value;

/// The token that ends a generation.
pub const EOG: u32 = 2;

const SPECIAL: [(&str, u32); 2] = [("<|im_start|>", 1), ("<|im_end|>", EOG)];

/// The ids of a text.
pub fn tokens_of(text: &str, parse_special: bool) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, next)) = rest.split_first() {
        let special = SPECIAL.iter().filter(|_| parse_special);
        match special.filter_map(|(word, id)| Some((rest.strip_prefix(word.as_bytes())?, *id))).next() {
            Some((after, id)) => {
                ids.push(id);
                rest = after;
            }
            None => {
                ids.push(3 + u32::from(*byte));
                rest = next;
            }
        }
    }
    ids
}

/// The text of ids.
pub fn text_of(ids: &[u32]) -> String {
    let mut bytes = Vec::new();
    for id in ids {
        match SPECIAL.iter().find(|(_, special)| special == id) {
            Some((word, _)) => bytes.extend(word.bytes()),
            None => bytes.push(u8::try_from(id - 3).unwrap()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The ids in a JSON array.
pub(super) fn ids_in(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .map(|ids| ids.iter().filter_map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect())
        .unwrap_or_default()
}
