//! What callers of the store were told, on the simulated disk, and what must be true of the disk therefore.

use std::collections::BTreeMap;

use boxmaker::proto::*;
use boxmaker::store::*;

use super::sim::{Rng, Sim};
use super::{
    assistant, baseline, calling, carried, catalog, id, named, tool_result, tool_start, turn_end, usage, user,
};

/// What is known of a session from what its callers were told.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// Its creation, or its deletion, was not acknowledged: it may be there or not.
    uncertain: bool,
    /// Acknowledged records of the newest epoch, without the first.
    acked: Vec<LogRecord>,
    /// An append of which nobody knows.
    maybe: Vec<LogRecord>,
    /// The records of each epoch before.
    pub(super) earlier: Vec<Vec<LogRecord>>,
    /// An epoch of which nobody knows whether it has begun.
    next: Option<Vec<LogRecord>>,
}

/// What is known of all sessions.
#[derive(Debug, Default)]
pub struct Model {
    pub(super) sessions: BTreeMap<SessionId, Known>,
    pub(super) open: BTreeMap<SessionId, Session<Sim>>,
}

/// A broken promise.
pub type Verdict = Result<(), String>;

/// What may follow in a session.
fn next_batch(session: &Session<Sim>, rng: &mut Rng) -> Vec<LogRecord> {
    let longest = [10, 600, 3000][rng.below(3)];
    let text = "x".repeat(rng.below(longest));
    let unanswered = session.sequence().unanswered().first().map(|(call, ..)| call.0);
    match (session.sequence().open_turn(), unanswered) {
        (_, Some(call)) => {
            let turn = session.sequence().open_turn().map_or(0, |turn| turn.0);
            vec![tool_start(turn, call), tool_result(turn, call, ToolOutcome::Ok)]
        }
        _ if rng.chance(8) => vec![named(&text)],
        (None, _) => vec![user(session.next_turn().0, &text)],
        (Some(TurnId(turn)), _) if rng.chance(4) => {
            vec![calling(turn, &[session.next_call().0]), usage(turn, 1)]
        }
        (Some(TurnId(turn)), _) => vec![assistant(turn, &text), usage(turn, 1), turn_end(turn)],
    }
}

async fn write(session: &mut Session<Sim>, mut batch: Vec<LogRecord>) -> Result<(), SessionError> {
    match (batch.len(), batch.pop()) {
        (1, Some(record)) => session.append(record).await,
        (_, last) => {
            batch.extend(last);
            session.append_all(batch).await
        }
    }
}

impl Model {
    pub(super) async fn step(&mut self, sim: &Sim, rng: &mut Rng) -> Verdict {
        let id = id(&format!("s{}", rng.below(3)));
        let was_open = self.open.contains_key(&id);
        match (self.sessions.contains_key(&id), was_open) {
            (false, _) => self.create(sim, &id).await,
            (true, false) => self.reopen(sim, &id).await,
            (true, true) => match rng.below(12) {
                0 => match self.open.remove(&id) {
                    Some(session) if rng.chance(2) => session.close().await.or(Ok(())),
                    _ => Ok(()),
                },
                1 => {
                    self.open.remove(&id);
                    self.delete(sim, &id).await
                }
                2 => catalog(sim).list().await.map(|_| ()).or(Ok(())),
                3 => self.begin_epoch(sim, &id, rng).await,
                4 | 5 => self.append_to_all(sim, rng).await,
                _ => self.append(sim, &id, rng).await,
            },
        }
    }

    pub(super) async fn create(&mut self, sim: &Sim, id: &SessionId) -> Verdict {
        match catalog(sim).create(Some(id.clone()), baseline(), 0, Some("n".to_owned())).await {
            Ok(session) => {
                let acked = session.records()[1..].to_vec();
                self.sessions.insert(id.clone(), Known { acked, ..Known::default() });
                self.open.insert(id.clone(), session);
            }
            Err(_) => {
                self.sessions.insert(id.clone(), Known { uncertain: true, ..Known::default() });
            }
        }
        Ok(())
    }

    /// Opens a session in the middle of a round; the fault may come in between.
    pub(super) async fn reopen(&mut self, sim: &Sim, id: &SessionId) -> Verdict {
        let known = self.sessions.get_mut(id).unwrap();
        match catalog(sim).open(id).await {
            Ok((session, _)) => {
                known.shown(id, &session)?;
                self.open.insert(id.clone(), session);
            }
            Err(SessionError::Torn { .. }) if known.uncertain || !known.maybe.is_empty() => {
                if catalog(sim).repair(id).await.is_ok() && !known.uncertain {
                    // what was cut away is not there
                }
            }
            Err(e @ (SessionError::Torn { .. } | SessionError::Baseline(BaselineError::Content { .. }))) => {
                return Err(format!("{id} is damaged: {e}"));
            }
            Err(_) => {}
        }
        Ok(())
    }

    async fn delete(&mut self, sim: &Sim, id: &SessionId) -> Verdict {
        match catalog(sim).delete(id).await {
            Ok(()) => {
                self.sessions.remove(id);
            }
            Err(_) => self.sessions.get_mut(id).unwrap().uncertain = true,
        }
        Ok(())
    }

    pub(super) async fn append(&mut self, sim: &Sim, id: &SessionId, rng: &mut Rng) -> Verdict {
        let mut session = self.open.remove(id).unwrap();
        let batch = next_batch(&session, rng);
        let result = write(&mut session, batch.clone()).await;
        self.account(sim, session, batch, result)
    }

    /// Appends to all open sessions at once: their operations overtake each other.
    async fn append_to_all(&mut self, sim: &Sim, rng: &mut Rng) -> Verdict {
        let mut writers = Vec::new();
        for (_, mut session) in std::mem::take(&mut self.open) {
            let batch = next_batch(&session, rng);
            writers.push(tokio::task::spawn_local(async move {
                let result = write(&mut session, batch.clone()).await;
                (session, batch, result)
            }));
        }
        for writer in writers {
            let (session, batch, result) = writer.await.map_err(|e| e.to_string())?;
            self.account(sim, session, batch, result)?;
        }
        Ok(())
    }

    /// Notes what the writer of an append was told.
    fn account(
        &mut self,
        sim: &Sim,
        session: Session<Sim>,
        batch: Vec<LogRecord>,
        result: Result<(), SessionError>,
    ) -> Verdict {
        let id = session.id().clone();
        let known = self.sessions.get_mut(&id).unwrap();
        match result {
            Ok(()) => known.acked.extend(batch),
            Err(e) if (e.unknown() || sim.crashed()) && known.maybe.is_empty() => {
                if !matches!(e, SessionError::Poisoned(_)) {
                    known.maybe = batch;
                }
            }
            Err(_) => {}
        }
        if session.records()[1..] != known.acked {
            return Err(format!("{id}: the memory holds what was not acknowledged"));
        }
        if !session.is_poisoned() {
            self.open.insert(id, session);
        }
        Ok(())
    }

    pub(super) async fn begin_epoch(&mut self, sim: &Sim, id: &SessionId, rng: &mut Rng) -> Verdict {
        let known = self.sessions.get_mut(id).unwrap();
        let session = self.open.get_mut(id).unwrap();
        if !session.sequence().unanswered().is_empty() {
            return Ok(());
        }
        let sequence = session.sequence();
        let goes_on = sequence.open_turn().or(sequence.retriable_turn().filter(|_| rng.chance(2)));
        let records = vec![carried(goes_on.map(|turn| turn.0), &"s".repeat(rng.below(2000)))];
        match session.begin_epoch(baseline(), records.clone()).await {
            Ok(()) => {
                known.earlier.push(std::mem::replace(&mut known.acked, records));
                if session.epoch().0 as usize != known.earlier.len() {
                    return Err(format!("{id}: told of an epoch that the session is not in"));
                }
            }
            Err(e) if (e.unknown() || sim.crashed()) && known.maybe.is_empty() => {
                if !matches!(e, SessionError::Poisoned(_)) {
                    known.next = Some(records);
                }
            }
            Err(_) => {}
        }
        if session.records()[1..] != known.acked {
            return Err(format!("{id}: the memory holds what was not acknowledged"));
        }
        if session.is_poisoned() {
            self.open.remove(id);
        }
        Ok(())
    }

    /// Everything that anybody was told is there, and everything has a way out.
    pub(super) async fn verify(&mut self, sim: &Sim) -> Verdict {
        if let Some(wrong) = sim.wrong().first() {
            return Err(wrong.clone());
        }
        let catalog = catalog(sim);
        catalog.sweep().await.map_err(|e| format!("sweep: {e}"))?;
        let list = catalog.list().await.map_err(|e| format!("list: {e}"))?;
        let mut gone = Vec::new();
        for (id, known) in &mut self.sessions {
            let listed = list.iter().find(|info| info.id == *id);
            if listed.is_none() && !known.uncertain {
                return Err(format!("{id} is not listed"));
            }
            match Self::open_or_repair(&catalog, id, known).await? {
                Some(session) => known.shown(id, &session)?,
                None => gone.push(id.clone()),
            }
        }
        for id in gone {
            self.sessions.remove(&id);
        }
        for info in catalog.list().await.map_err(|e| format!("list: {e}"))? {
            let known = self.sessions.get(&info.id).ok_or_else(|| format!("{} was deleted", info.id))?;
            let (records, _) =
                catalog.records(&info.id, 0, None, u64::MAX).await.map_err(|e| format!("records: {e}"))?;
            let started = |record: &LogRecord| matches!(record, LogRecord::SessionStart(_));
            let records: Vec<_> = records.into_iter().filter(|record| !started(record)).collect();
            let all: Vec<_> = known.earlier.iter().flatten().chain(&known.acked).cloned().collect();
            if info.state == SessionState::Damaged || records != all {
                return Err(format!("{info:?} does not agree with what was opened"));
            }
        }
        Ok(())
    }

    async fn open_or_repair(
        catalog: &Catalog<Sim>,
        id: &SessionId,
        known: &Known,
    ) -> Result<Option<Session<Sim>>, String> {
        let error = match catalog.open(id).await {
            Ok((session, _)) => return Ok(Some(session)),
            Err(e) => e,
        };
        match &error {
            SessionError::Torn { .. } if known.uncertain || !known.maybe.is_empty() => {}
            SessionError::NotFound(_) | SessionError::HalfCreated { .. } if known.uncertain => {}
            e => return Err(format!("{id} does not open: {e}")),
        }
        let remedy = match catalog.repair(id).await {
            Ok(remedy) => remedy,
            Err(SessionError::NotFound(_)) if known.uncertain => return Ok(None),
            Err(e) => return Err(format!("{id} cannot be repaired: {e}")),
        };
        match remedy {
            Remedy::MoveAway(_) if known.uncertain => Ok(None),
            // what an earlier life of the disk left behind the end may look like a record
            Remedy::Refused(SessionError::Torn { .. }) => Self::recover(catalog, id, known).await,
            Remedy::Cut(_) => match catalog.open(id).await {
                Ok((session, _)) => Ok(Some(session)),
                Err(e) => Err(format!("{id} does not open after its repair: {e}")),
            },
            other => Err(format!("{id}, which fails with {error}, has the remedy {other:?}")),
        }
    }

    /// A session that cannot be repaired: every record that anybody was told of is in its copy.
    async fn recover(
        catalog: &Catalog<Sim>,
        id: &SessionId,
        known: &Known,
    ) -> Result<Option<Session<Sim>>, String> {
        let copy: SessionId = "copy".parse().unwrap();
        match catalog.recover(id, Some(copy.clone())).await {
            Ok(Some(_)) => {
                let (session, _) = catalog.open(&copy).await.map_err(|e| format!("copy: {e}"))?;
                let shown = &session.records()[1..];
                let expected: Vec<_> = known.acked.iter().chain(&known.maybe).cloned().collect();
                if !shown.starts_with(&known.acked) || !expected.starts_with(shown) {
                    return Err(format!("{id}: its copy has {} records of {expected:?}", shown.len()));
                }
                drop(session);
                catalog.delete(&copy).await.map_err(|e| format!("delete the copy: {e}"))?;
            }
            // not one record is good: its creation was not acknowledged
            Err(_) if known.uncertain => {}
            other => return Err(format!("{id} can be neither repaired nor recovered: {other:?}")),
        }
        catalog.delete(id).await.map_err(|e| format!("delete {id}: {e}"))?;
        Ok(None)
    }
}

impl Known {
    /// Compares what is known with what an open session shows; what was shown must stay.
    fn shown(&mut self, id: &SessionId, session: &Session<Sim>) -> Verdict {
        let shown = &session.records()[1..];
        // which of two epochs has begun is settled by whoever is shown one
        let next = self.next.take();
        let epoch = session.epoch().0 as usize;
        match next {
            Some(next) if epoch == self.earlier.len() + 1 && shown == next => {
                self.earlier.push(std::mem::replace(&mut self.acked, next));
                return Ok(());
            }
            _ if epoch != self.earlier.len() => {
                return Err(format!("{id} shows epoch {epoch} after {} others", self.earlier.len()));
            }
            _ => {}
        }
        let with_maybe: Vec<_> = self.acked.iter().chain(&self.maybe).cloned().collect();
        // of a creation that was not acknowledged, the name is in the same append
        let right = if self.uncertain && self.acked.is_empty() {
            matches!(shown, [LogRecord::Named(_)])
        } else {
            shown == self.acked || shown == with_maybe
        };
        if !right {
            return Err(format!(
                "{id} shows {} records, acknowledged were {}, perhaps {} more",
                shown.len(),
                self.acked.len(),
                self.maybe.len()
            ));
        }
        self.acked = shown.to_vec();
        self.maybe.clear();
        self.uncertain = false;
        Ok(())
    }
}
