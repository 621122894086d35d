//! Token ids, and the compact form in which the log keeps them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One token of the model's vocabulary.
pub type TokenId = u32;

/// A list of token ids. On disk a JSON string: each id as unsigned LEB128 (seven bits a byte, low bits
/// first), the bytes in base 64 without padding. `bxctl export --json` shows them as numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenIds(pub Vec<TokenId>);

impl TokenIds {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn to_text(&self) -> String {
        let mut bytes = Vec::with_capacity(self.0.len().saturating_mul(3));
        for id in &self.0 {
            let mut rest = *id;
            loop {
                let low = u8::try_from(rest & 0x7f).unwrap_or(0x7f);
                rest >>= 7;
                if rest == 0 {
                    bytes.push(low);
                    break;
                }
                bytes.push(low | 0x80);
            }
        }
        STANDARD_NO_PAD.encode(bytes)
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let bytes = STANDARD_NO_PAD.decode(text).map_err(|e| format!("token ids: not base 64: {e}"))?;
        let mut ids = Vec::with_capacity(bytes.len() / 2);
        let (mut value, mut shift) = (0u64, 0u32);
        for byte in bytes {
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 != 0 {
                shift = shift.saturating_add(7);
                if shift > 28 {
                    return Err("token ids: a number of more than 32 bits".to_owned());
                }
                continue;
            }
            if byte == 0 && shift > 0 {
                return Err("token ids: a number with a needless last byte".to_owned());
            }
            ids.push(
                TokenId::try_from(value)
                    .map_err(|_| "token ids: a number of more than 32 bits".to_owned())?,
            );
            (value, shift) = (0, 0);
        }
        if shift > 0 {
            return Err("token ids: the last number is cut off".to_owned());
        }
        Ok(Self(ids))
    }
}

impl From<Vec<TokenId>> for TokenIds {
    fn from(ids: Vec<TokenId>) -> Self {
        Self(ids)
    }
}

impl std::ops::Deref for TokenIds {
    type Target = [TokenId];

    fn deref(&self) -> &[TokenId] {
        &self.0
    }
}

impl Serialize for TokenIds {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        super::ids::from_text(d, Self::from_text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_writing_and_reading() {
        for ids in [vec![], vec![0], vec![127, 128, 16_383, 16_384, u32::MAX, 0]] {
            let ids = TokenIds(ids);
            let json = serde_json::to_string(&ids).unwrap();
            assert_eq!(serde_json::from_str::<TokenIds>(&json).unwrap(), ids);
        }
        assert_eq!(serde_json::to_string(&TokenIds(vec![1, 300])).unwrap(), "\"AawC\"");
    }

    #[test]
    fn damaged_ids_are_refused() {
        for text in ["\"gA\"", "\"gAA\"", "\"/////xA\"", "\"///////////wE\"", "\"A=\"", "\"*\"", "7"] {
            assert!(serde_json::from_str::<TokenIds>(text).is_err(), "{text}");
        }
    }
}
