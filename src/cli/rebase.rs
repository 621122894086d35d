//! `rebase`: a new epoch, followed to its beginning.

use super::args::Rebase;
use super::care::called;
use super::error::{CliError, status};
use super::follow::{Cancel, Interrupts, Nobody, Output, Press, cancel, is_idle};
use super::link::{Arrival, Link};
use super::pen::Pen;
use crate::proto::{Epoch, EventKind, Reply, Request, SessionId, TurnOutcome};

/// `bxctl rebase`; gives the exit status.
///
/// # Errors
/// See [`CliError`].
pub async fn rebase(link: &mut Link, options: Rebase) -> Result<u8, CliError> {
    let info = link.choose(options.named.or(options.session).as_deref()).await?;
    let mut pen = Pen::split();
    // first attach, then ask: so no event is missed
    link.watch(&info.id).await?;
    pen.note(&format!("session {}: a new epoch begins (Ctrl-C stops it)", called(&info)))?;
    let mut output = Output::new(options.json);
    // from here on Ctrl-C cancels
    let mut interrupts = Interrupts::new()?;
    let code = begin(link, &mut pen, &mut output, &mut interrupts, (&info.id, info.epoch)).await?;
    pen.end_line()?;
    Ok(code)
}

/// Asks for a new epoch after `epoch` in the session that `link` watches, and shows what comes of it; gives the
/// exit status.
///
/// # Errors
/// See [`CliError`].
pub async fn begin(
    link: &mut Link,
    pen: &mut Pen,
    output: &mut Output,
    interrupts: &mut Interrupts,
    (session, epoch): (&SessionId, Epoch),
) -> Result<u8, CliError> {
    link.ask(Request::Rebase { session: session.clone() }).await?;
    loop {
        let arrival = tokio::select! {
            arrival = link.next(pen) => arrival?,
            press = interrupts.next() => {
                if press == Press::Quit {
                    return Ok(status::CANCELLED);
                }
                match cancel(link, pen, interrupts, &mut Nobody, session).await? {
                    Cancel::Quit | Cancel::Detach => return Ok(status::CANCELLED),
                    // that there is nothing to cancel any more is told by the events
                    Cancel::Asked | Cancel::Nothing => continue,
                }
            }
        };
        let over = match arrival {
            Arrival::Back { running, .. } => !running,
            Arrival::Event(event) => {
                let idle = is_idle(&event.kind);
                if !matches!(event.kind, EventKind::Snapshot { .. }) {
                    output.event(pen, &event)?;
                }
                match event.kind {
                    EventKind::Rebased { outcome: TurnOutcome::Done, .. } => return Ok(status::OK),
                    EventKind::Rebased { outcome: TurnOutcome::Cancelled, .. } => {
                        return Ok(status::CANCELLED);
                    }
                    EventKind::Rebased { .. } => return Ok(status::FAILED),
                    _ => idle,
                }
            }
        };
        if over {
            return missed(link, pen, (session, epoch)).await;
        }
    }
}

/// Its end was not seen: the session tells.
async fn missed(
    link: &mut Link,
    pen: &mut Pen,
    (session, before): (&SessionId, Epoch),
) -> Result<u8, CliError> {
    match link.ask(Request::Open { session: session.clone() }).await? {
        Reply::Session { info, .. } if info.epoch > before => {
            pen.note(&format!("epoch {} has begun", info.epoch))?;
            Ok(status::OK)
        }
        _ => {
            pen.warn("no new epoch has begun: the daemon was started again meanwhile, or it failed; its journal tells")?;
            Ok(status::FAILED)
        }
    }
}
