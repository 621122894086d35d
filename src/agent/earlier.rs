//! What a session's earlier epochs say, for the tool that looks things up in them.

use std::fmt;
use std::rc::Rc;

use crate::proto::LogRecord;
use crate::store::{self, Session};
use crate::tool::{Earlier, EarlierFuture, Passage};

/// A session's epochs before the newest, read from the disk.
pub(super) struct EarlierEpochs(store::Earlier);

impl EarlierEpochs {
    /// Those of an open session.
    pub(super) fn of(session: &Session) -> Rc<dyn Earlier> {
        Rc::new(Self(session.earlier()))
    }
}

impl fmt::Debug for EarlierEpochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EarlierEpochs").finish()
    }
}

impl Earlier for EarlierEpochs {
    fn each<'a>(&'a self, visit: &'a mut dyn FnMut(Passage<'_>)) -> EarlierFuture<'a> {
        Box::pin(async move {
            let mut pass = |record: LogRecord| match &record {
                LogRecord::UserMessage(m) => visit(Passage { turn: m.turn, who: "user", text: &m.text }),
                LogRecord::AssistantMessage(m) => {
                    visit(Passage { turn: m.turn, who: "assistant", text: &m.text });
                }
                LogRecord::ToolResult(r) => {
                    visit(Passage { turn: r.turn, who: &format!("tool {}", r.name), text: &r.content });
                }
                _ => {}
            };
            let epochs = self.0.each(&mut pass).await.map_err(|e| e.to_string())?;
            Ok(epochs > 0)
        })
    }
}
