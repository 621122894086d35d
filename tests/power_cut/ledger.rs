//! What clients were told, and whether a disk still holds it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use boxmaker::proto::{Digest, Epoch, SessionId};
use boxmaker::store::{Catalog, OpenOptions, SessionError, Uring};
use serde_json::Value;

/// A client was told that the log of this epoch of `session` holds these bytes: `len` of them, with this digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// The how many-th, over all of a run.
    pub number: u64,
    pub session: SessionId,
    pub epoch: u32,
    pub len: usize,
    pub digest: String,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TOLD {} {} {} {} {} .", self.number, self.session, self.epoch, self.len, self.digest)
    }
}

impl Told {
    /// From a whole line; a line that the cut tore has no full stop.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.trim().split(' ').collect();
        let ["TOLD", number, session, epoch, len, digest, "."] = words[..] else { return None };
        Some(Self {
            number: number.parse().ok()?,
            session: session.parse().ok()?,
            epoch: epoch.parse().ok()?,
            len: len.parse().ok()?,
            digest: digest.to_owned(),
        })
    }

    /// What is told by the newest log up to and with its `nth` line (from 1) of this kind and turn.
    pub fn of(number: u64, home: &Path, session: &SessionId, kind: &str, turn: u64, nth: usize) -> Self {
        let epoch = (0..).take_while(|epoch| log_of(home, session, *epoch).exists()).last().unwrap_or(0);
        let path = log_of(home, session, epoch);
        let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (mut len, mut found) = (0, 0);
        for line in bytes.split_inclusive(|b| *b == b'\n') {
            len += line.len();
            let value: Value = serde_json::from_slice(line).expect("a line is JSON");
            if value["type"] == kind && (kind == "session_start" || value["turn"] == turn) {
                found += 1;
            }
            if found == nth {
                let digest = Digest::of(&bytes[..len]).to_string();
                return Self { number, session: session.clone(), epoch, len, digest };
            }
        }
        panic!("told of {kind} {nth} of turn {turn}, and {} has it not", path.display());
    }
}

fn log_of(home: &Path, session: &SessionId, epoch: u32) -> std::path::PathBuf {
    home.join("sessions").join(session.as_str()).join(format!("{epoch}.jsonl"))
}

/// The newest of each log; its bytes hold those of all before it.
fn newest(told: &[Told]) -> BTreeMap<(&SessionId, u32), &Told> {
    told.iter().map(|told| ((&told.session, told.epoch), told)).collect()
}

/// The newest epoch of each session that anybody was told of.
fn epochs(told: &[Told]) -> BTreeMap<&SessionId, u32> {
    newest(told).into_keys().collect()
}

/// What of it the disk lost.
pub fn lost(disk: &Path, told: &[Told]) -> Vec<String> {
    let home = disk.join("home");
    let mut lost = Vec::new();
    for told in newest(told).values() {
        match fs::read(log_of(&home, &told.session, told.epoch)) {
            Ok(bytes) if bytes.get(..told.len).is_some_and(|b| Digest::of(b).to_string() == told.digest) => {}
            Ok(bytes) => lost.push(format!("{told}: the log has {} bytes, or others", bytes.len())),
            Err(e) => lost.push(format!("{told}: {e}")),
        }
    }
    lost.extend(tools(disk));
    lost
}

/// What is wrong with the runs of the tool: each writes what it was called with into `notes`, synced.
fn tools(disk: &Path) -> Vec<String> {
    let notes = fs::read(disk.join("notes")).unwrap_or_default();
    let notes = String::from_utf8_lossy(&notes);
    let mut wrong = Vec::new();
    let mut logs = String::new();
    for entry in fs::read_dir(disk.join("home/sessions")).into_iter().flatten().flatten() {
        for log in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            logs += &String::from_utf8_lossy(&fs::read(log.path()).unwrap_or_default());
        }
    }
    let mut seen = BTreeSet::new();
    // a line that the cut tore does not parse
    for note in notes.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let text = note["text"].as_str().unwrap_or_default().to_owned();
        if !logs.contains(&format!(r#"\"{text}\""#)) {
            wrong.push(format!("the tool ran with {text}, and no log holds the call"));
        }
        if !seen.insert(text.clone()) {
            wrong.push(format!("the tool ran twice with {text}"));
        }
    }
    wrong
}

/// Opens each session of a home; one that is refused for its torn end is repaired first. Gives what went
/// wrong, and how many were repaired.
pub async fn opens(home: &Path, told: &[Told]) -> (Vec<String>, usize) {
    let epochs = epochs(told);
    let catalog = Catalog::<Uring>::new(home.to_owned(), OpenOptions::default());
    let (mut wrong, mut repaired) = (Vec::new(), 0);
    if let Err(e) = catalog.sweep().await {
        wrong.push(format!("sweep: {e}"));
    }
    let ids = match catalog.ids().await {
        Ok(ids) => ids,
        Err(e) => {
            wrong.push(format!("list: {e}"));
            Vec::new()
        }
    };
    for told in epochs.keys().filter(|id| !ids.contains(id)) {
        wrong.push(format!("{told} is not listed"));
    }
    for id in ids {
        let error = match catalog.open(&id).await {
            Ok((session, _)) => {
                if epochs.get(&id).is_some_and(|epoch| session.epoch() < Epoch(*epoch)) {
                    wrong.push(format!("{id} opens in epoch {}", session.epoch()));
                }
                continue;
            }
            Err(e) => e,
        };
        let excused = match &error {
            SessionError::Torn { .. } => true,
            SessionError::HalfCreated { .. } | SessionError::NotFound(_) => !epochs.contains_key(&id),
            _ => false,
        };
        if !excused {
            wrong.push(format!("{id} does not open: {error}"));
            continue;
        }
        repaired += 1;
        match catalog.repair(&id).await {
            Ok(_) if epochs.contains_key(&id) => {
                if let Err(e) = catalog.open(&id).await {
                    wrong.push(format!("{id} does not open after its repair: {e}"));
                }
            }
            Err(e) if epochs.contains_key(&id) => wrong.push(format!("{id} cannot be repaired: {e}")),
            _ => {}
        }
    }
    (wrong, repaired)
}
