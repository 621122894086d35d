//! Does the server keep the promise? Reads what it tells about itself, and tries it with tiny requests.

use super::completion::{Chunk, CompletionRequest, Final};
use super::count;
use super::error::ModelError;
use super::props::Props;
use super::server::{Server, Special};
use crate::proto::{Sampling, TokenId};

/// How good or bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, but something is lost or cannot be known.
    Warn,
    /// Breaks the promise.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How good or bad it is.
    pub level: Level,
    /// What was found.
    pub what: String,
    /// What mends it, with the flag of llama-server; empty where nothing needs to be mended.
    pub remedy: String,
}

/// The smallest context, in tokens, that a conversation with tools is any use in.
const LEAST_CONTEXT: u64 = 2048;

/// A text for the tiny requests; long enough that a lost cache cannot be mistaken for a kept one.
const PROBE_TEXT: &str = "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve,";
const PROBE_MORE: &str = " and then";

fn ok(what: impl Into<String>) -> Finding {
    Finding { level: Level::Ok, what: what.into(), remedy: String::new() }
}

fn warn(what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { level: Level::Warn, what: what.into(), remedy: remedy.into() }
}

fn bad(what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { level: Level::Bad, what: what.into(), remedy: remedy.into() }
}

impl Server {
    /// Looks at everything that the promise needs of the server. Two tiny requests are made on our slot,
    /// unless its cache holds a conversation, which they would throw away.
    pub async fn check(&self) -> Vec<Finding> {
        let props = match self.props().await {
            Ok(props) => props,
            Err(e) if e.is_wait() => return vec![bad(e.to_string(), "start it, or wait until it is ready")],
            Err(e) => return vec![bad(e.to_string(), "")],
        };
        let mut findings =
            vec![ok(format!("{} answers: {}, {}", self.url(), props.build_info, props.model_file()))];
        findings.extend(self.check_props(&props));
        let held = self.check_slots(&mut findings).await;
        findings.push(self.check_saving().await);
        if self.check_slot(&props).is_ok() {
            findings.push(match held {
                Some(held) if held > 0 => ok(format!(
                    "the cache of slot {} holds {held} tokens of a conversation, so it was not tried out",
                    self.slot
                )),
                _ => self.probe().await.unwrap_or_else(|e| bad(format!("a tiny request failed: {e}"), "")),
            });
        }
        findings.push(ok(
            "not visible from outside: --no-kv-unified --cache-ram 0 --no-context-shift --cache-reuse 0 \
             (docs/model-server.md says why each is needed)",
        ));
        findings
    }

    fn check_props(&self, props: &Props) -> Vec<Finding> {
        let slot = self.slot;
        let mut findings = vec![match (self.check_slot(props), props.total_slots) {
            (Err(e), _) => bad(e.to_string(), format!("-np {}", u64::from(slot).saturating_add(1))),
            (Ok(()), 1) => ok("it has one slot, and it is ours"),
            (Ok(()), total) => warn(
                format!("it has {total} slots: a request to another one can take our slot's cache away"),
                "-np 1; or at least --no-kv-unified --cache-ram 0, and nobody else may use slot ".to_owned()
                    + &slot.to_string(),
            ),
        }];
        findings.push(if props.n_ctx < LEAST_CONTEXT {
            warn(
                format!("the slot's context is only {} tokens", props.n_ctx),
                format!("-c {LEAST_CONTEXT} or more (it is divided among the slots)"),
            )
        } else {
            ok(format!("the slot's context is {} tokens", props.n_ctx))
        });
        if props.is_sleeping {
            findings.push(bad(
                "it sleeps: it has unloaded the model, and with it every conversation's cache",
                "leave out --sleep-idle-seconds",
            ));
        }
        if props.chat_template.is_empty() {
            findings.push(bad("the model has no chat template", "--chat-template-file FILE"));
        }
        findings
    }

    /// Gives the number of tokens in our slot's cache, if it is known.
    async fn check_slots(&self, findings: &mut Vec<Finding>) -> Option<u64> {
        match self.slots().await {
            Ok(slots) => {
                let ours = slots.into_iter().find(|slot| slot.id == u64::from(self.slot))?;
                findings.push(ok("it tells about its slots"));
                ours.n_prompt_tokens
            }
            Err(e) => {
                findings.push(warn(
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
            Err(ModelError::Unsupported { .. }) => warn(
                "it cannot save a slot's cache: after its restart every conversation is evaluated anew, and \
                 the ids of characters of several tokens cannot be read back",
                "--slot-save-path DIR",
            ),
            Err(ModelError::Status { code: 400, .. }) => ok("it can save a slot's cache"),
            Ok(_) => bad("it saves a slot's cache outside its folder", "use another version of llama-server"),
            Err(e) => warn(format!("whether it can save a slot's cache is unknown: {e}"), ""),
        }
    }

    /// Two tiny requests, the second the continuation of the first.
    async fn probe(&self) -> Result<Finding, ModelError> {
        let mut prompt = self.tokenize(PROBE_TEXT, Special::Plain).await?;
        let (first, ids) = self.tiny(&prompt).await?;
        let expected = first.tokens_evaluated.saturating_add(first.tokens_predicted).saturating_sub(1);
        if first.tokens_cached != expected {
            return Ok(bad(
                format!(
                    "after a request of {} tokens and {} generated its cache holds {} tokens instead of {expected}",
                    first.tokens_evaluated, first.tokens_predicted, first.tokens_cached
                ),
                "--no-context-shift; or use a supported version of llama-server",
            ));
        }
        if count(ids.len()) != first.tokens_predicted {
            return Ok(warn(
                "it did not send the id of a generated token",
                "use a supported version of llama-server",
            ));
        }
        prompt.extend(ids);
        prompt.extend(self.tokenize(PROBE_MORE, Special::Plain).await?);
        let (second, _) = self.tiny(&prompt).await?;
        Ok(if second.cache_n == expected {
            ok(format!("a second request found all {expected} tokens of the first in the cache"))
        } else {
            bad(
                format!(
                    "a second request found {} of the first's {expected} tokens in the cache",
                    second.cache_n
                ),
                "-np 1 --no-kv-unified --cache-ram 0, no other client, and --swa-full for a model with a sliding window",
            )
        })
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
