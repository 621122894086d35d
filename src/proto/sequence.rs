//! Which record may follow which: one validator for append, open and replay.

use std::fmt;

use super::{
    AssistantMessage, CallId, Carried, CarriedEnd, Decision, Epoch, Finish, LogRecord, SessionStart,
    ToolOutcome, ToolResult, TurnEnd, TurnId, TurnOutcome,
};

/// Why a record cannot stand where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(String);

impl Violation {
    /// An epoch that begins without the turn that the one before left open.
    #[must_use]
    pub fn left_open(turn: TurnId) -> Self {
        Self(format!("turn {turn} of the epoch before is open and was not carried over"))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

fn violation<T>(why: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(why.into()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
    Announced,
    Allowed,
    Denied,
    Started,
    Answered,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Call {
    call: CallId,
    name: String,
    state: CallState,
}

/// What the newest turn has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Turn {
    turn: TurnId,
    /// The last assistant message's end, until results or a user message follow it.
    spoke: Option<Finish>,
    calls: Vec<Call>,
    ended: Option<TurnOutcome>,
}

/// The state of a sequence of records. A record that [`Sequence::check`] accepts moves it on; one that
/// it refuses leaves it as it was.
///
/// What it holds to be true of every log: the first record is `session_start`, and no other; turns count
/// up by one and one is open at a time; an assistant speaks only in a turn, and only when every call
/// before has its result; a call's start and result follow its announcement, each at most once, results
/// in the calls' order; a call is decided about at most once, before it starts, and one that was denied never
/// starts; a turn that failed, was cancelled or met a limit may be taken up again. What an epoch
/// takes over stands right behind its `session_start`, and a turn that was open must go on there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sequence {
    epoch: Option<Epoch>,
    last_turn: TurnId,
    last_call: CallId,
    turn: Option<Turn>,
    /// The newest turn of the epoch before, until it is known whether it goes on in this one.
    before: Option<Turn>,
    /// Right behind the `session_start` of an epoch after the first.
    fresh: bool,
}

impl Sequence {
    /// The sequence of the epoch that follows this one: turn and call numbers go on.
    #[must_use]
    pub fn next_epoch(&self) -> Self {
        let before = self.turn.clone().or_else(|| self.before.clone());
        Self {
            epoch: None,
            last_turn: self.last_turn,
            last_call: self.last_call,
            turn: None,
            before,
            fresh: false,
        }
    }

    /// The number for the next tool call.
    #[must_use]
    pub fn next_call(&self) -> CallId {
        self.last_call.next()
    }

    /// The number for the next turn.
    #[must_use]
    pub fn next_turn(&self) -> TurnId {
        self.last_turn.next()
    }

    /// The newest turn, if it has no `turn_end`.
    #[must_use]
    pub fn open_turn(&self) -> Option<TurnId> {
        self.turn.as_ref().filter(|t| t.ended.is_none()).map(|t| t.turn)
    }

    /// The newest turn, if asking again makes sense: it ended without an answer, or was never ended.
    #[must_use]
    pub fn retriable_turn(&self) -> Option<TurnId> {
        self.turn.as_ref().filter(|t| t.ended != Some(TurnOutcome::Done)).map(|t| t.turn)
    }

    /// The newest turn's calls that have no result, oldest first, and whether each was started.
    #[must_use]
    pub fn unanswered(&self) -> Vec<(CallId, String, bool)> {
        let calls = self.turn.iter().flat_map(|t| &t.calls);
        let open = calls.filter(|c| c.state != CallState::Answered);
        open.map(|c| (c.call, c.name.clone(), c.state == CallState::Started)).collect()
    }

    /// At the beginning of an epoch: the turn that the one before left open, until it is carried over.
    #[must_use]
    pub fn left_open(&self) -> Option<TurnId> {
        self.before.as_ref().filter(|t| t.ended.is_none()).map(|t| t.turn)
    }

    /// Accepts the next record, or says why it cannot stand here.
    ///
    /// # Errors
    /// A [`Violation`] in words for people; the sequence is then unchanged.
    pub fn check(&mut self, record: &LogRecord) -> Result<(), Violation> {
        if self.epoch.is_none() && !matches!(record, LogRecord::SessionStart(_)) {
            return violation(format!("{} before session_start", record.kind()));
        }
        if let Some(open) = self.left_open()
            && !matches!(record, LogRecord::SessionStart(_) | LogRecord::Carried(_))
        {
            return Err(Violation::left_open(open));
        }
        self.next(record)?;
        if !matches!(record, LogRecord::SessionStart(_)) {
            (self.before, self.fresh) = (None, false);
        }
        Ok(())
    }

    fn next(&mut self, record: &LogRecord) -> Result<(), Violation> {
        match record {
            LogRecord::SessionStart(start) => self.start(start),
            LogRecord::Carried(carried) => self.carried(carried),
            LogRecord::UserMessage(message) => self.user(message.turn),
            LogRecord::AssistantMessage(message) => self.assistant(message),
            LogRecord::ToolStart(start) => {
                let call = self.call(start.turn, start.call, &start.name)?;
                match call.state {
                    CallState::Announced | CallState::Allowed => {
                        call.state = CallState::Started;
                        Ok(())
                    }
                    CallState::Denied => violation(format!("call {} is started, but was denied", start.call)),
                    CallState::Started | CallState::Answered => {
                        violation(format!("call {} is started a second time", start.call))
                    }
                }
            }
            LogRecord::Approval(approval) => {
                let open = self.open(approval.turn)?;
                match open.calls.iter_mut().find(|c| c.call == approval.call) {
                    Some(call) if call.state == CallState::Announced => {
                        call.state = match approval.decision {
                            Decision::Allow => CallState::Allowed,
                            Decision::Deny => CallState::Denied,
                        };
                        Ok(())
                    }
                    _ => violation(format!(
                        "an approval of call {}, which does not wait for one",
                        approval.call
                    )),
                }
            }
            LogRecord::ToolResult(result) => self.result(result),
            LogRecord::Named(_) => Ok(()),
            LogRecord::Usage(usage) => match &self.turn {
                Some(turn) if turn.turn == usage.turn && turn.ended.is_none() && turn.spoke.is_some() => {
                    Ok(())
                }
                _ => violation(format!("usage of turn {} without a completion before it", usage.turn)),
            },
            LogRecord::TurnEnd(end) => self.end(end),
        }
    }

    fn start(&mut self, start: &SessionStart) -> Result<(), Violation> {
        if self.epoch.is_some() {
            return violation("a second session_start");
        }
        if start.previous.is_some() != (start.epoch > Epoch(0)) {
            return violation("\"previous\" must be there from epoch 1 on, and not in epoch 0");
        }
        self.epoch = Some(start.epoch);
        self.fresh = start.epoch > Epoch(0);
        Ok(())
    }

    fn carried(&mut self, carried: &Carried) -> Result<(), Violation> {
        if !self.fresh {
            return violation("\"carried\" anywhere but right behind the session_start of a later epoch");
        }
        let fits = match carried.ends {
            CarriedEnd::Open => carried.turn.is_none(),
            CarriedEnd::Asked => carried.turn.is_some(),
            CarriedEnd::Said => true,
        };
        if !fits {
            return violation("a turn that goes on, and an end of the prompt that does not fit it");
        }
        let answered = |t: &Turn| t.calls.iter().all(|c| c.state == CallState::Answered);
        let goes_on =
            |t: &&Turn| Some(t.turn) == carried.turn && t.ended != Some(TurnOutcome::Done) && answered(t);
        match (carried.turn, self.before.as_ref().filter(goes_on).map(|t| t.ended), self.left_open()) {
            (Some(turn), Some(ended), _) => {
                self.turn = Some(Turn { turn, spoke: None, calls: Vec::new(), ended });
                Ok(())
            }
            (Some(turn), None, _) => violation(format!(
                "turn {turn} goes on, but is not the newest, has its answer, or has calls without a result"
            )),
            (None, _, Some(open)) => Err(Violation::left_open(open)),
            (None, ..) => Ok(()),
        }
    }

    fn user(&mut self, turn: TurnId) -> Result<(), Violation> {
        if let Some(open) = self.open_turn() {
            return violation(format!("a user message while turn {open} has no turn_end"));
        }
        let expected = self.next_turn();
        if turn != expected {
            return violation(format!("turn {turn} where turn {expected} is next"));
        }
        self.last_turn = turn;
        self.turn = Some(Turn { turn, spoke: None, calls: Vec::new(), ended: None });
        Ok(())
    }

    fn assistant(&mut self, message: &AssistantMessage) -> Result<(), Violation> {
        let first = self.next_call();
        let Some(turn) = self.turn.as_mut().filter(|t| t.turn == message.turn) else {
            return violation(format!(
                "an assistant message of turn {}, which is not the newest",
                message.turn
            ));
        };
        if turn.ended == Some(TurnOutcome::Done) {
            return violation(format!("an assistant message after turn {} was done", message.turn));
        }
        if let Some(call) = turn.calls.iter().find(|c| c.state != CallState::Answered) {
            return violation(format!("an assistant message while call {} has no result", call.call));
        }
        if matches!(turn.spoke, Some(Finish::Stop | Finish::ToolCalls)) {
            return violation("two assistant messages in a row");
        }
        if (message.finish == Finish::ToolCalls) == message.tool_calls.is_empty() {
            return violation("tool_calls and finish contradict each other");
        }
        let mut expected = first;
        for call in &message.tool_calls {
            if call.call != expected {
                return violation(format!("call {} where call {expected} is next", call.call));
            }
            expected = expected.next();
        }
        let announced =
            |c: &super::ToolCall| Call { call: c.call, name: c.name.clone(), state: CallState::Announced };
        turn.calls = message.tool_calls.iter().map(announced).collect();
        turn.spoke = Some(message.finish);
        turn.ended = None;
        if let Some(last) = message.tool_calls.last() {
            self.last_call = last.call;
        }
        Ok(())
    }

    fn open(&mut self, turn: TurnId) -> Result<&mut Turn, Violation> {
        match self.turn.as_mut().filter(|t| t.turn == turn && t.ended.is_none()) {
            Some(open) => Ok(open),
            None => violation(format!("turn {turn} is not open")),
        }
    }

    fn call(&mut self, turn: TurnId, call: CallId, name: &str) -> Result<&mut Call, Violation> {
        let open = self.open(turn)?;
        match open.calls.iter_mut().find(|c| c.call == call) {
            Some(found) if found.name == name => Ok(found),
            Some(found) => {
                violation(format!("call {call} is named {name:?}, but was announced as {:?}", found.name))
            }
            None => violation(format!("call {call} was never announced")),
        }
    }

    fn result(&mut self, result: &ToolResult) -> Result<(), Violation> {
        let open = self.open(result.turn)?;
        if let Some(earlier) =
            open.calls.iter().find(|c| c.call < result.call && c.state != CallState::Answered)
        {
            return violation(format!(
                "the result of call {} before that of call {}",
                result.call, earlier.call
            ));
        }
        let call = self.call(result.turn, result.call, &result.name)?;
        let ran =
            matches!(result.outcome, ToolOutcome::Ok | ToolOutcome::TimedOut | ToolOutcome::Interrupted);
        match call.state {
            CallState::Answered => violation(format!("a second result of call {}", result.call)),
            CallState::Announced | CallState::Allowed | CallState::Denied if ran => {
                violation(format!("a result of call {}, which was never started", result.call))
            }
            CallState::Allowed | CallState::Started if result.outcome == ToolOutcome::Denied => {
                violation(format!("call {} was denied, but had been allowed or started before", result.call))
            }
            _ => {
                call.state = CallState::Answered;
                let open = self.open(result.turn)?;
                if open.calls.iter().all(|c| c.state == CallState::Answered) {
                    open.spoke = None;
                }
                Ok(())
            }
        }
    }

    fn end(&mut self, end: &TurnEnd) -> Result<(), Violation> {
        let open = self.open(end.turn)?;
        if let Some(call) = open.calls.iter().find(|c| c.state != CallState::Answered) {
            return violation(format!("turn {} ends while call {} has no result", end.turn, call.call));
        }
        if end.outcome == TurnOutcome::Done && open.spoke != Some(Finish::Stop) {
            return violation(format!("turn {} is done without an answer", end.turn));
        }
        open.ended = Some(end.outcome);
        Ok(())
    }
}
