//! A repair and a recovery on the simulated disk, of which the n-th operation fails before the power goes.

use std::path::Path;

use boxmaker::proto::*;
use boxmaker::store::*;

use super::sim::{Fault, Rng, Sim};
use super::{SIM_HOME, baseline, catalog, id, log_of, turn};

fn bytes(sim: &Sim, path: &Path) -> Result<Vec<u8>, String> {
    sim.read(path).ok_or_else(|| format!("{} is gone", path.display()))
}

/// A closed session of some turns; its records.
async fn some_turns(sim: &Sim, name: &str, seed: u64) -> Result<Vec<LogRecord>, String> {
    let mut rng = Rng::new(seed);
    let created = catalog(sim).create(Some(id(name)), baseline(), 0, None).await;
    let mut session = created.map_err(|e| format!("create: {e}"))?;
    for number in 1..=2 + rng.next() % 3 {
        for append in turn(number, &"t".repeat(rng.below(1500))) {
            session.append_all(append).await.map_err(|e| format!("append: {e}"))?;
        }
    }
    let records = session.records().to_vec();
    session.close().await.map_err(|e| format!("close: {e}"))?;
    Ok(records)
}

/// The n-th operation of a repair fails, and then the power goes. Tells whether the repair has as many
/// operations.
pub async fn repair(n: u64, fault: Fault, seed: u64) -> Result<bool, String> {
    let sim = Sim::new(seed);
    let records = some_turns(&sim, "a", seed).await?;
    let whole = bytes(&sim, &log_of("a"))?;
    let torn = [&whole[..], b"{\"prev\":\"half"].concat();
    sim.put(&log_of("a"), torn.clone());
    let before = sim.ops();
    sim.fail(n, fault);
    let first = catalog(&sim).repair(&id("a")).await;
    let reached = sim.ops() - before >= n;
    let after = sim.power_cut(seed ^ n);
    let now = bytes(&after, &log_of("a"))?;
    // a file that was cut has any length between the two until that is synced
    if !now.starts_with(&whole) || !torn.starts_with(&now) {
        return Err("the log is neither torn nor whole".to_owned());
    }
    if let Ok(Remedy::Cut(cut)) = &first
        && (now != whole || bytes(&after, &cut.saved)? != torn[whole.len()..])
    {
        return Err("told that it is cut, and it is not, or what was cut is not kept".to_owned());
    }
    if now != whole {
        match catalog(&after).repair(&id("a")).await {
            Ok(Remedy::Cut(_)) => {}
            other => return Err(format!("the second repair: {other:?}")),
        }
    }
    let (session, _) = catalog(&after).open(&id("a")).await.map_err(|e| format!("open: {e}"))?;
    if session.records() != records {
        return Err("a record is gone, or came back".to_owned());
    }
    Ok(reached)
}

/// The n-th operation of a recovery fails, and then the power goes. Tells whether the recovery has as
/// many operations.
pub async fn recovery(n: u64, fault: Fault, seed: u64) -> Result<bool, String> {
    let sim = Sim::new(seed);
    let records = some_turns(&sim, "a", seed).await?;
    let whole = bytes(&sim, &log_of("a"))?;
    // in the last line, with that line once more behind it: damage in the middle
    let last_line = whole[..whole.len() - 1].iter().rposition(|b| *b == b'\n').unwrap_or(0) + 1;
    let mut damaged = whole.clone();
    let at = damaged.len() - 60;
    damaged[at] ^= 1;
    damaged.extend_from_slice(&whole[last_line..]);
    sim.put(&log_of("a"), damaged.clone());
    let before = sim.ops();
    sim.fail(n, fault);
    let done = catalog(&sim).recover(&id("a"), Some(id("b"))).await;
    let reached = sim.ops() - before >= n;
    let after = sim.power_cut(seed ^ n);
    if bytes(&after, &log_of("a"))? != damaged {
        return Err("the damaged session was touched".to_owned());
    }
    catalog(&after).sweep().await.map_err(|e| format!("sweep: {e}"))?;
    match catalog(&after).open(&id("b")).await {
        Ok((new, _)) if new.records()[1..] == records[1..records.len() - 1] => {}
        Ok(_) => return Err("the new session has other records".to_owned()),
        Err(SessionError::NotFound(_)) if done.is_err() => {}
        Err(e) => return Err(format!("the new session, told as {:?}: {e}", done.is_ok())),
    }
    let entries = Storage::list(&after, &Path::new(SIM_HOME).join("sessions"))
        .await
        .map_err(|e| format!("list: {e}"))?;
    match entries.iter().find(|entry| entry.name.starts_with('.')) {
        Some(left) => Err(format!("{left:?} is left over")),
        None => Ok(reached),
    }
}
