//! Random histories on the simulated disk: work that fails at some point, a kill or a power cut, and a look at what is left.

use super::id;
use super::model::{Model, Verdict};
use super::sim::{Bugs, Fault, Rng, Sim};

/// A history: rounds of work on a disk that fails, each ended by a kill or a power cut.
pub async fn history(seed: u64, bugs: Bugs, rounds: u32) -> Verdict {
    let mut rng = Rng::new(seed);
    let mut sim = Sim::with_bugs(seed, bugs);
    let mut model = Model::default();
    for round in 0..rounds {
        let at = 1 + rng.next() % 80;
        let fault = match rng.below(8) {
            0 => Fault::Error(5),
            1 => Fault::Done(28),
            2 => Fault::Short,
            3 | 4 => Fault::Sync,
            _ => Fault::Crash,
        };
        sim.fail(at, fault);
        for _ in 0..14 {
            if sim.crashed() {
                break;
            }
            model.step(&sim, &mut rng).await.map_err(|e| format!("round {round}: {e}"))?;
        }
        model.open.clear();
        let trace = sim.trace().join("\n");
        for _ in 0..2 {
            let kill = rng.chance(3);
            sim = if kill { sim.killed() } else { sim.power_cut(rng.next()) };
            let verdict = model.verify(&sim).await;
            verdict.map_err(|e| {
                let how = if kill { "a kill" } else { "a power cut" };
                format!("round {round}, after {how}: {e}\n{trace}\n{}", sim.trace().join("\n"))
            })?;
        }
    }
    Ok(())
}

/// The n-th operation of a fixed piece of work fails, and then the power goes. Tells whether the work
/// has as many operations.
pub async fn nth_operation(n: u64, fault: Fault, seed: u64) -> Result<bool, String> {
    let sim = Sim::new(seed);
    let mut rng = Rng::new(seed);
    let mut model = Model::default();
    let id = id("s0");
    sim.fail(n, fault);
    model.create(&sim, &id).await?;
    for step in 0..5 {
        if !model.open.contains_key(&id) {
            model.reopen(&sim, &id).await?;
        }
        match (model.open.contains_key(&id), step) {
            (true, 2) => model.begin_epoch(&sim, &id, &mut rng).await?,
            (true, _) => model.append(&sim, &id, &mut rng).await?,
            (false, _) => {}
        }
    }
    model.open.clear();
    model.reopen(&sim, &id).await?;
    model.open.clear();
    let reached = sim.ops() >= n;
    sim.no_fault();
    let after = if rng.chance(4) { sim.killed() } else { sim.power_cut(rng.next()) };
    let why = |e| format!("{e}\n{}\n{}", sim.trace().join("\n"), after.trace().join("\n"));
    model.verify(&after).await.map_err(why)?;
    Ok(reached)
}

/// The n-th operation of the beginning of an epoch fails, in a session that is on the disk already, and then the
/// power goes. Tells whether the beginning has as many operations.
pub async fn nth_of_an_epoch(n: u64, fault: Fault, seed: u64, bugs: Bugs) -> Result<bool, String> {
    let sim = Sim::new(seed);
    let mut rng = Rng::new(seed);
    let mut model = Model::default();
    let id = id("s0");
    model.create(&sim, &id).await?;
    for n in 0.. {
        model.append(&sim, &id, &mut rng).await?;
        if n > 0 && model.open[&id].sequence().unanswered().is_empty() {
            break;
        }
    }
    sim.plant(bugs);
    let before = sim.ops();
    sim.fail(n, fault);
    model.begin_epoch(&sim, &id, &mut rng).await?;
    let reached = sim.ops() >= before + n;
    sim.no_fault();
    // what went wrong is told, and either epoch goes on
    if rng.chance(2) && !sim.crashed() {
        if !model.open.contains_key(&id) {
            model.reopen(&sim, &id).await?;
        }
        if model.open.contains_key(&id) {
            model.append(&sim, &id, &mut rng).await?;
        }
    }
    model.open.clear();
    let after = if rng.chance(4) { sim.killed() } else { sim.power_cut(rng.next()) };
    after.plant(Bugs::default());
    let why = |e| format!("{e}\n{}\n{}", sim.trace().join("\n"), after.trace().join("\n"));
    model.verify(&after).await.map_err(why)?;
    // and the next epoch can begin, whatever was left behind
    model.reopen(&after, &id).await?;
    let epochs = model.sessions[&id].earlier.len();
    model.begin_epoch(&after, &id, &mut rng).await?;
    let unanswered = model.open.get(&id).is_some_and(|s| !s.sequence().unanswered().is_empty());
    match model.sessions[&id].earlier.len() {
        now if now == epochs + 1 || unanswered => Ok(reached),
        _ => Err("the next epoch does not begin".to_owned()),
    }
}
