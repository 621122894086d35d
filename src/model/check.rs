//! Does the server keep the promise? Reads what it tells about itself, and tries it with tiny requests.

use super::completion::{Chunk, CompletionRequest, Final};
use super::error::ModelError;
use super::props::{Props, SlotState};
use super::server::{Server, Special};
use crate::proto::{Finding, Sampling, TokenId, count};

/// The smallest context, in tokens, that a conversation with tools is any use in.
const LEAST_CONTEXT: u64 = 2048;

/// A text for the tiny requests; long enough that a lost cache cannot be mistaken for a kept one.
const PROBE_TEXT: &str = "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve,";
const PROBE_MORE: &str = " and then";

/// How far a check may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Tiny requests are made on our slot, unless its cache holds a conversation, which they would throw away.
    Try,
    /// Nothing is asked that takes a slot: a turn may be using it.
    Ask,
}

/// What the tiny requests of a check have left in our slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probed {
    /// The tokens that were asked and sampled.
    list: Vec<TokenId>,
    /// How many of them the cache holds.
    cached: u64,
}

impl Server {
    /// Looks at everything that the promise needs of the server. Where it answers, gives its properties too, and what
    /// tiny requests have left in the slot, if some were made: [`Server::check_restored`] goes on from there.
    pub async fn check(&self, look: Look) -> (Vec<Finding>, Option<(Props, Option<Probed>)>) {
        let props = match self.props().await {
            Ok(props) => props,
            Err(e) if e.is_wait() => {
                return (vec![Finding::bad(e.to_string(), "start it, or wait until it is ready")], None);
            }
            Err(e) => return (vec![Finding::bad(e.to_string(), "")], None),
        };
        let answers = format!("{} answers: {}, {}", self.url(), props.build_info, props.model_file());
        let mut findings = vec![Finding::ok(answers)];
        findings.extend(self.check_props(&props));
        let held = self.check_slots(&mut findings).await;
        findings.push(self.check_saving().await);
        let mut probed = None;
        if self.check_slot(&props).is_ok() {
            findings.push(match held {
                _ if look == Look::Ask => {
                    Finding::ok("a daemon or a turn uses the slot, so its cache was not tried out")
                }
                Some(held) if held > 0 => Finding::ok(format!(
                    "the cache of slot {} holds {held} tokens of a conversation, so it was not tried out",
                    self.slot
                )),
                _ => match self.probe(&props).await {
                    Ok((finding, left)) => {
                        probed = left;
                        finding
                    }
                    Err(e) => Finding::bad(format!("a tiny request failed: {e}"), ""),
                },
            });
        }
        (findings, Some((props, probed)))
    }

    /// After the slot of a check was saved, emptied and restored: is it worth anything to the next request?
    ///
    /// # Errors
    /// The server cannot be asked.
    pub async fn check_restored(&self, probed: &Probed) -> Result<Finding, ModelError> {
        let mut prompt = probed.list.clone();
        prompt.extend(self.tokenize(PROBE_MORE, Special::Plain).await?);
        let (last, _) = self.tiny(&prompt).await?;
        let (found, cached) = (last.cache_n, probed.cached);
        Ok(if found == cached {
            Finding::ok(format!("a cache that was saved and restored was of use: all {cached} tokens"))
        } else {
            Finding::bad(
                format!(
                    "of a cache of {cached} tokens that was saved and restored, a request found {found}: after each \
                     restart of the server the rest of a conversation is evaluated again"
                ),
                "--swa-full for a model with a sliding window; or a newer llama-server",
            )
        })
    }

    fn check_props(&self, props: &Props) -> Vec<Finding> {
        let slot = self.slot;
        let mut findings = vec![match (self.check_slot(props), props.total_slots) {
            (Err(e), _) => Finding::bad(e.to_string(), format!("-np {}", u64::from(slot).saturating_add(1))),
            (Ok(()), 1) => Finding::ok("it has one slot, and it is ours"),
            (Ok(()), total) => Finding::warn(
                format!("it has {total} slots: a request to another one may take our slot's cache away"),
                "-np 1; or at least --no-kv-unified --cache-ram 0, and nobody else may use slot ".to_owned()
                    + &slot.to_string(),
            ),
        }];
        findings.push(if props.n_ctx < LEAST_CONTEXT {
            Finding::warn(
                format!("the slot's context is only {} tokens", props.n_ctx),
                format!("-c {LEAST_CONTEXT} or more (it is divided among the slots)"),
            )
        } else {
            Finding::ok(format!("the slot's context is {} tokens", props.n_ctx))
        });
        if props.is_sleeping {
            findings.push(Finding::bad(
                "it sleeps: it has unloaded the model, and with it every conversation's cache",
                "leave out --sleep-idle-seconds",
            ));
        }
        if props.endpoint_metrics == Some(false) {
            findings.push(Finding::ok(
                "it does not count for itself what it evaluates; with --metrics, `bxctl usage` can be compared with that",
            ));
        }
        findings
    }

    /// Gives the number of tokens in our slot's cache, if it is known.
    async fn check_slots(&self, findings: &mut Vec<Finding>) -> Option<u64> {
        match self.slots().await {
            Ok(slots) => {
                let ours = slots.into_iter().find(|slot| slot.id == u64::from(self.slot))?;
                findings.push(Finding::ok("it tells about its slots"));
                ours.n_prompt_tokens
            }
            Err(e) => {
                findings.push(Finding::warn(
                    format!(
                        "it does not tell about its slots ({e}), so a cancelled request's end cannot be seen"
                    ),
                    "--slots",
                ));
                None
            }
        }
    }

    /// Asks for a save under a name that no server takes: only the refusal's kind counts.
    async fn check_saving(&self) -> Finding {
        match self.save_slot("../").await {
            Err(ModelError::Unsupported { .. }) => Finding::warn(
                "it cannot save a slot's cache: after its restart every conversation is evaluated anew, and \
                 the ids of characters of several tokens cannot be read back",
                "--slot-save-path DIR",
            ),
            Err(ModelError::Status { code: 400, .. }) => Finding::ok("it can save a slot's cache"),
            Ok(_) => Finding::bad(
                "it saves a slot's cache outside its folder",
                "use another version of llama-server",
            ),
            Err(e) => Finding::warn(format!("whether it can save a slot's cache is unknown: {e}"), ""),
        }
    }

    /// Two tiny requests, the second the continuation of the first; between them one on another slot, where there
    /// is one that nobody uses.
    async fn probe(&self, props: &Props) -> Result<(Finding, Option<Probed>), ModelError> {
        let mut prompt = self.tokenize(PROBE_TEXT, Special::Plain).await?;
        let (first, ids) = self.tiny(&prompt).await?;
        let expected = first.tokens_evaluated.saturating_add(first.tokens_predicted).saturating_sub(1);
        if first.tokens_cached != expected {
            let what = format!(
                "after a request of {} tokens and {} generated its cache holds {} tokens instead of {expected}",
                first.tokens_evaluated, first.tokens_predicted, first.tokens_cached
            );
            let remedy = "--no-context-shift; or use a supported version of llama-server";
            return Ok((Finding::bad(what, remedy), None));
        }
        if count(ids.len()) != first.tokens_predicted {
            let what = "it did not send the id of a generated token";
            return Ok((Finding::warn(what, "use a supported version of llama-server"), None));
        }
        let elsewhere = if props.total_slots > 1 { self.ask_another_slot(&prompt).await? } else { "" };
        prompt.extend(ids);
        prompt.extend(self.tokenize(PROBE_MORE, Special::Plain).await?);
        let (second, ids) = self.tiny(&prompt).await?;
        if second.cache_n != expected {
            let what = format!(
                "a second request{elsewhere} found {} of the first's {expected} tokens in the cache: each turn \
                 evaluates tokens again",
                second.cache_n
            );
            let remedy = if elsewhere.is_empty() {
                "--swa-full for a model with a sliding window; no other client on the slot"
            } else {
                "-np 1; or at least --no-kv-unified --cache-ram 0"
            };
            return Ok((Finding::bad(what, remedy), None));
        }
        prompt.extend(ids);
        let what =
            format!("a second request{elsewhere} found all {expected} tokens of the first in the cache");
        Ok((Finding::ok(what), Some(Probed { list: prompt, cached: second.tokens_cached })))
    }

    /// What another client of the server may do, on an empty slot; gives words for it.
    async fn ask_another_slot(&self, prompt: &[TokenId]) -> Result<&'static str, ModelError> {
        #[derive(serde::Serialize)]
        struct Body<'a> {
            prompt: &'a [TokenId],
            id_slot: u64,
            n_predict: u64,
        }
        let slots = self.slots().await.unwrap_or_default();
        let unused = |slot: &&SlotState| !slot.is_processing && slot.n_prompt_tokens.unwrap_or(0) == 0;
        let other = slots.iter().filter(unused).map(|slot| slot.id).find(|id| *id != u64::from(self.slot));
        let Some(id_slot) = other else { return Ok("") };
        // other tokens, so that the slot is not taken for ours
        let backwards: Vec<TokenId> = prompt.iter().rev().copied().collect();
        let body = Body { prompt: &backwards, id_slot, n_predict: 1 };
        self.post::<_, serde_json::Value>("/completion", &body, self.silence).await?;
        Ok(", after one on another slot,")
    }

    async fn tiny(&self, prompt: &[TokenId]) -> Result<(Final, Vec<TokenId>), ModelError> {
        let sampling = Sampling { temperature: Some(0.0), ..Sampling::default() };
        let request =
            CompletionRequest { prompt, max_tokens: 1, sampling: &sampling, thinking: None, calls: None };
        let mut completion = self.complete(&request).await?;
        let mut all = Vec::new();
        while let Some(chunk) = completion.next().await? {
            match chunk {
                Chunk::Progress { .. } => {}
                Chunk::Delta { ids, .. } => all.extend(ids),
                Chunk::Final(last) | Chunk::ThinkingLimit(last) => return Ok((last, all)),
            }
        }
        Err(self.stream_cut())
    }
}
