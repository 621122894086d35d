//! The prompt as JSON, kept from request to request: a prompt goes on from the one before, so only what was added to it
//! has to be encoded.

use crate::proto::TokenId;

/// The newest prompt, and its encoding.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    ids: Vec<TokenId>,
    /// With a comma between two.
    json: Vec<u8>,
}

impl Encoded {
    /// A request's body: the JSON object `rest`, which has other members, with the prompt as its first.
    pub(super) fn body(&mut self, prompt: &[TokenId], rest: &[u8]) -> serde_json::Result<Vec<u8>> {
        self.go_on_to(prompt)?;
        let members = rest.strip_prefix(b"{").unwrap_or(rest);
        Ok([&b"{\"prompt\":["[..], &self.json, b"],", members].concat())
    }

    fn go_on_to(&mut self, prompt: &[TokenId]) -> serde_json::Result<()> {
        let new = match prompt.strip_prefix(self.ids.as_slice()) {
            Some(new) => new,
            // another session's, or a new epoch's
            None => {
                *self = Self::default();
                prompt
            }
        };
        let json = serde_json::to_vec(new)?;
        let new_json = json.get(1..json.len().saturating_sub(1)).unwrap_or_default();
        if !self.json.is_empty() && !new_json.is_empty() {
            self.json.push(b',');
        }
        self.json.extend_from_slice(new_json);
        self.ids.extend_from_slice(new);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_that_of_the_prompt_whatever_was_sent_before() {
        let mut encoded = Encoded::default();
        let prompts: [&[TokenId]; 9] =
            [&[], &[0], &[0, 10], &[0, 10], &[0, 10, u32::MAX, 7], &[0, 10], &[0, 11], &[10], &[]];
        for prompt in prompts {
            let body = encoded.body(prompt, br#"{"id_slot":0,"stream":true}"#).unwrap();
            let read: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(read, serde_json::json!({"prompt": prompt, "id_slot": 0, "stream": true}));
            assert_eq!(encoded.ids, prompt);
        }
    }

    #[test]
    fn what_was_encoded_is_not_encoded_again() {
        let mut encoded = Encoded::default();
        encoded.body(&[1, 2], b"{}").unwrap();
        // told apart from what would be encoded now
        encoded.json = b"1,+2".to_vec();
        let body = encoded.body(&[1, 2, 3], br#"{"a":1}"#).unwrap();
        assert_eq!(body, br#"{"prompt":[1,+2,3],"a":1}"#);
    }
}
