//! The tool part of a turn: started in the log before it is started in the world.

use std::pin::pin;

use tokio::time::Instant;

use crate::config::Limit;
use crate::proto::{EventKind, LogRecord, Timestamp, ToolCall, ToolOutcome, ToolResult, ToolStart};
use crate::tool::{self, CallContext, Policy, Prepared, Run, SpillTarget, ToolReply};

use super::AgentError;
use super::approval::not_run;
use super::batch::Batch;
use super::cancel::Cancel;
use super::earlier::EarlierEpochs;
use super::end::{End, reached};
use super::turn::{Pending, Turn};

/// The calls of one answer, as far as they have come.
pub(super) struct Calls {
    left: std::vec::IntoIter<Pending>,
    /// What the next result waits for; nothing when all are there.
    next: Option<Next>,
    /// How the turn ends after them, when it may not go on.
    end: Option<End>,
}

/// What has to happen in the world, after an append of all that is final, before a call has its result.
pub(super) enum Next {
    /// The servers are asked which tools they have.
    Refresh(ToolCall),
    /// Somebody is asked whether it may run.
    Ask(ToolCall, Run),
    /// It runs; the record of its start is in the batch.
    Run(ToolCall, Run),
}

impl Turn {
    /// Takes up the calls of an answer, and adds to the batch what needs nothing but the append.
    pub(super) fn take_up(&mut self, calls: Vec<Pending>, batch: &mut Batch, cancel: &Cancel) -> Calls {
        let mut calls = Calls { left: calls.into_iter(), next: None, end: None };
        self.go_on(&mut calls, batch, cancel);
        calls
    }

    /// Runs the calls in order and records a result for each. Tells whether the turn goes on.
    pub(super) async fn run_tools(&mut self, mut calls: Calls, cancel: &Cancel) -> Result<bool, AgentError> {
        let mut batch = Batch::default();
        while let Some(next) = calls.next.take() {
            self.commit(std::mem::take(&mut batch)).await?;
            calls.next = match next {
                Next::Refresh(call) => self.refresh(call, &mut batch, cancel).await,
                Next::Ask(call, run) => self.approve(call, run, &mut batch, cancel).await,
                Next::Run(call, run) => {
                    let reply = self.run(&call, run, cancel).await;
                    self.result(call, reply, &mut batch)
                }
            };
            self.go_on(&mut calls, &mut batch, cancel);
        }
        let end = calls.end.or_else(|| self.out_of_time(cancel));
        let goes_on = end.is_none();
        if let Some(end) = end {
            self.end(end, &mut batch);
        }
        self.commit(batch).await?;
        Ok(goes_on)
    }

    /// Takes up one call after the other, up to one that waits for the world.
    fn go_on(&mut self, calls: &mut Calls, batch: &mut Batch, cancel: &Cancel) {
        while calls.next.is_none()
            && let Some(Pending { call, problem }) = calls.left.next()
        {
            calls.end = calls.end.take().or_else(|| self.may_call(&call, cancel));
            calls.next = match problem {
                _ if calls.end.is_some() => self.result(call, not_run(), batch),
                Some(problem) => self.result(call, ToolReply::error(problem), batch),
                None if self.agent.tools.is_current(&call.name, &call.arguments) => self.prepare(call, batch),
                None => Some(Next::Refresh(call)),
            };
        }
    }

    /// Whether somebody has asked to stop, or the turn's time is up.
    fn out_of_time(&self, cancel: &Cancel) -> Option<End> {
        let late = || End::limit(reached(&self.limits, Limit::TurnSeconds));
        let stopped = cancel.reason().map(End::stopped);
        stopped.or_else(|| (Instant::now() >= self.deadline).then(late))
    }

    /// The limits that a call can meet.
    fn may_call(&mut self, call: &ToolCall, cancel: &Cancel) -> Option<End> {
        if let Some(end) = self.out_of_time(cancel) {
            return Some(end);
        }
        self.calls = self.calls.saturating_add(1);
        if self.calls > self.limits.turn_tool_calls {
            return Some(End::limit(reached(&self.limits, Limit::TurnToolCalls)));
        }
        let same = Some((call.name.clone(), meaning(&call.arguments)));
        self.repeats = if self.last_call == same { self.repeats.saturating_add(1) } else { 1 };
        self.last_call = same;
        (self.repeats > self.limits.repeated_calls)
            .then(|| End::limit(reached(&self.limits, Limit::RepeatedCalls)))
    }

    /// Has the servers say which tools they have, as a call may need one of them.
    async fn refresh(&self, call: ToolCall, batch: &mut Batch, cancel: &Cancel) -> Option<Next> {
        tokio::select! {
            biased;
            _ = cancel.stopped() => return self.result(call, not_run(), batch),
            () = tokio::time::sleep_until(self.deadline) => return self.result(call, not_run(), batch),
            () = self.agent.tools.refresh(&call.name, &call.arguments) => {}
        }
        self.prepare(call, batch)
    }

    /// Reads a call: it has its answer at once, or a tool is to run.
    fn prepare(&self, call: ToolCall, batch: &mut Batch) -> Option<Next> {
        let run = match self.agent.tools.prepare(&call.name, &call.arguments) {
            // `find_tool` did nothing that the log would have to know before; that it ran is recorded all the same
            Prepared::Answer(reply) => {
                if reply.outcome == ToolOutcome::Ok {
                    self.start(&call, batch);
                }
                return self.result(call, reply, batch);
            }
            Prepared::Run(run) => run,
        };
        match run.policy() {
            Policy::Allow => {
                self.start(&call, batch);
                Some(Next::Run(call, run))
            }
            Policy::Ask => Some(Next::Ask(call, run)),
            Policy::Deny => self.result(call, ToolReply::denied(run.tool(), "the configuration"), batch),
        }
    }

    /// Runs a call whose start is on the disk.
    async fn run(&self, call: &ToolCall, run: Run, cancel: &Cancel) -> ToolReply {
        let (session, turn, tool) = (self.conversation.id(), self.turn, run.tool());
        log::info!(SESSION:% = session, TURN:% = turn, EVENT = "tool_start", TOOL = tool; "turn {turn} of {session} runs the tool {tool}");
        let stop = tool::Cancel::new();
        let (dir, earlier) =
            self.conversation.read(|s| (s.dir().join("tool-output"), EarlierEpochs::of(s))).await;
        let spill =
            SpillTarget { dir, stem: format!("call-{}", call.call), max_bytes: self.limits.tool_spill_bytes };
        let context = CallContext {
            seconds: self.limits.tool_seconds,
            output_bytes: self.limits.tool_output_bytes,
            spill: Some(spill),
            cancel: stop.clone(),
            earlier: Some(earlier),
        };
        let mut reply = pin!(run.run(context));
        tokio::select! {
            biased;
            _ = cancel.stopped() => stop.cancel(),
            () = tokio::time::sleep_until(self.deadline) => stop.cancel(),
            reply = &mut reply => return reply,
        }
        reply.await
    }

    /// Adds the record of a call's start: once it is on the disk, the tool may be started.
    pub(super) fn start(&self, call: &ToolCall, batch: &mut Batch) {
        let ToolCall { call, name, .. } = call.clone();
        batch.add(LogRecord::ToolStart(ToolStart { time: Timestamp::now(), turn: self.turn, call, name }));
    }

    /// Adds a call's result, with which nothing is left for it to wait for.
    pub(super) fn result(&self, call: ToolCall, reply: ToolReply, batch: &mut Batch) -> Option<Next> {
        let ToolReply { outcome, content, truncated_bytes, millis } = reply;
        let ToolCall { call, name, .. } = call;
        batch.add(LogRecord::ToolResult(ToolResult {
            time: Timestamp::now(),
            turn: self.turn,
            call,
            name: name.clone(),
            outcome,
            content: content.clone(),
            truncated_bytes,
            millis,
        }));
        batch.then(move |of| {
            let (session, turn) = (of.conversation.id(), of.turn);
            let how = format!("{outcome:?}").to_lowercase();
            // the name is the model's text, and no text of a conversation is logged
            let shown = if of.agent.tools.knows(&name) { name.as_str() } else { "an unknown tool" };
            log::info!(SESSION:% = session, TURN:% = turn, EVENT = "tool_result", OUTCOME = how.as_str(), MILLIS = millis; "turn {turn} of {session}: call {call} ({shown}) ended: {how}, {millis} ms");
            of.publish(EventKind::ToolResult { call, name, outcome, content });
        });
        None
    }
}

/// Arguments without what doesn't matter to what they say: a model that runs in circles may change its spaces.
fn meaning(arguments: &str) -> String {
    let read = serde_json::from_str::<serde_json::Value>(arguments);
    read.map_or_else(|_| arguments.to_owned(), |value| value.to_string())
}
