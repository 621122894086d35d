//! `loopd verify`, `repair` and `recover`: what a person does about a session while no daemon needs to run.
//!
//! Each function makes its own runtime, prints its answer to stdout and its errors to stderr, and gives the
//! exit status: 0 done, 1 failed, 2 wrong use, 4 damaged or refused, 78 no io_uring.

use std::future::Future;
use std::path::Path;

use super::pin;
use crate::proto::{ErrorCode, SessionId};
use crate::store::{Catalog, Cut, Inspected, OpenOptions, Remedy, SessionError, Uring};

const DONE: u8 = 0;
const FAILED: u8 = 1;
const USAGE: u8 = 2;
const DAMAGED: u8 = 4;
/// `EX_CONFIG`, which the service's unit treats as an error that a restart does not mend.
const NO_RING: u8 = 78;

/// Runs a command on a runtime of its own.
fn run(home: &Path, command: impl AsyncFnOnce(Catalog) -> Result<u8, SessionError>) -> u8 {
    let runtime = match Uring::runtime() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("loopd: {e}");
            return NO_RING;
        }
    };
    let catalog = Catalog::new(home.to_owned(), OpenOptions::default());
    let work: std::pin::Pin<Box<dyn Future<Output = _>>> = Box::pin(command(catalog));
    runtime.block_on(work).unwrap_or_else(|e| {
        eprintln!("loopd: {e}");
        status(&e)
    })
}

/// The exit status of an error.
fn status(error: &SessionError) -> u8 {
    match error {
        SessionError::NoMatch(text) if text.is_empty() => USAGE,
        SessionError::Baseline(_)
        | SessionError::Locked(_)
        | SessionError::Exists(_)
        | SessionError::Ambiguous { .. } => DAMAGED,
        damaged if damaged.code() == ErrorCode::Damaged => DAMAGED,
        _ => FAILED,
    }
}

/// `loopd verify [ID|--all]`: reads whole sessions, every line and digest; takes no lock and writes
/// nothing. `which` is an id, the beginning of one, or a name; without it, all are verified.
pub fn verify(home: &Path, which: Option<&str>) -> u8 {
    run(home, async |catalog| {
        // the folder of sessions is made with the first one
        if !home.join("sessions").is_dir() && !home.join(pin::FILE).is_file() {
            eprintln!(
                "loopd: {} is no home: it has neither a home.toml nor a folder named sessions; give the folder above that one with --home",
                home.display()
            );
            return Ok(FAILED);
        }
        let ids = match which {
            Some(text) => vec![catalog.resolve(text).await?],
            None => catalog.ids().await?,
        };
        let mut worst = DONE;
        for id in &ids {
            let found = match catalog.inspect(id).await {
                Ok(found) => found,
                // deleted since the names were read
                Err(SessionError::NotFound(_)) if which.is_none() => continue,
                Err(e) => return Err(e),
            };
            let Inspected { epochs, records, bytes, remains, error, .. } = found;
            for name in remains {
                println!(
                    "{id}: {name} is left of an epoch whose beginning was cut off; nothing reads it; `loopd repair \
                     {id}`, or the next new epoch, moves it away"
                );
            }
            match error {
                None => println!("{id}: ok, {records} records, {bytes} bytes, {epochs} epochs"),
                Some(error) => {
                    println!("{id}: damaged, {records} good records before it");
                    eprintln!("loopd: {error}");
                    worst = worst.max(status(&error));
                }
            }
        }
        if ids.is_empty() {
            println!("no sessions under {}", catalog.home().display());
        }
        Ok(worst)
    })
}

/// `loopd repair ID [--yes]`: shows what can be done about a torn end or a creation that was cut off, and
/// with `yes` does it.
pub fn repair(home: &Path, which: &str, yes: bool) -> u8 {
    run(home, async |catalog| {
        let id = catalog.resolve(which).await?;
        let remedy = if yes { catalog.repair(&id).await? } else { catalog.plan_repair(&id).await? };
        Ok(tell(&id, &remedy, yes))
    })
}

/// Says what was, or would be, done.
fn tell(id: &SessionId, remedy: &Remedy, done: bool) -> u8 {
    match remedy {
        Remedy::None => println!("{id}: nothing is wrong with it; nothing was changed"),
        Remedy::Cut(cut) => {
            let Cut { log, line, keep, bytes, why, saved } = cut;
            let (log, saved, good) = (log.display(), saved.display(), line.saturating_sub(1));
            // the first damaged line, which `verify` names, may stand further on
            println!("{log}:{line}: the append that was cut off begins here: {why}");
            if done {
                println!(
                    "cut {bytes} bytes from byte {keep} on; saved them in {saved}; {good} lines are whole"
                );
            } else {
                println!(
                    "would cut {bytes} bytes from byte {keep} on and save them beside the log; {good} lines stay"
                );
                println!("nothing was changed; `loopd repair {id} --yes` does it");
            }
        }
        Remedy::MoveRemains(moves) => {
            println!(
                "{id}: the beginning of its next epoch was cut off; it goes on in the one before, and is whole"
            );
            let verb = if done { "moved" } else { "would move" };
            for (from, to) in moves {
                println!("{verb} {} to {}", from.display(), to.display());
            }
            if !done {
                println!("nothing was changed; `loopd repair {id} --yes` does it");
            }
        }
        Remedy::MoveAway(to) if done => {
            println!(
                "{id}: its creation was cut off before anyone was told of it; moved to {}",
                to.display()
            );
        }
        Remedy::MoveAway(to) => {
            println!(
                "{id}: its creation was cut off before anyone was told of it; would move it to {}",
                to.display()
            );
            println!("nothing was changed; `loopd repair {id} --yes` does it");
        }
        Remedy::Refused(error) => {
            eprintln!("loopd: {error}");
            return DAMAGED;
        }
    }
    DONE
}

/// `loopd recover ID [NEW]`: copies the good records before the damage into a new session, whose id is
/// generated when none is given, and leaves the damaged one as it is.
pub fn recover(home: &Path, which: &str, new: Option<&str>) -> u8 {
    let new = match new.map(str::parse::<SessionId>).transpose() {
        Ok(new) => new,
        Err(e) => {
            eprintln!("loopd: {e}");
            return USAGE;
        }
    };
    run(home, async |catalog| {
        let id = catalog.resolve(which).await?;
        let Some(recovered) = catalog.recover(&id, new).await? else {
            println!("{id}: nothing is wrong with it; nothing was copied");
            return Ok(DONE);
        };
        let (epoch, line) = recovered.last;
        println!("{}", recovered.damage);
        println!(
            "copied {} good records, to line {line} of epoch {epoch}, into the new session {}; {id} is as it was",
            recovered.records, recovered.id
        );
        Ok(DONE)
    })
}
