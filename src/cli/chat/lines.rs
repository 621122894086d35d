//! A chat whose input is no terminal: each line is a turn.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Stdin};

use crate::cli::error::{CliError, status};
use crate::cli::follow::{Ending, Interrupts, Nobody, Output, follow};
use crate::cli::link::Link;
use crate::cli::pen::Pen;
use crate::cli::text;
use crate::proto::{Request, SessionInfo};

/// The longest line, in bytes; the daemon's own limit is lower.
const LINE_BYTES: u64 = 64 << 20;

/// Sends each line that is not empty, and prints the answers; gives the worst outcome's exit status.
///
/// # Errors
/// No daemon, or the output cannot be written. Refused messages are told, and the next line follows.
pub async fn run(link: &mut Link, info: &SessionInfo) -> Result<u8, CliError> {
    let mut pen = Pen::split();
    let mut interrupts = Interrupts::new()?;
    let mut output = Output::new(false);
    let mut input = BufReader::new(tokio::io::stdin());
    let mut worst = status::OK;
    let mut number = 0u64;
    loop {
        let mut line = Vec::new();
        if !next_line(link, &mut pen, &mut interrupts, &mut input, &mut line).await? {
            return Ok(worst);
        }
        number = number.saturating_add(1);
        let result = match message(line, number) {
            Ok(text) if text.trim().is_empty() => continue,
            Ok(text) => turn(link, &mut pen, &mut output, &mut interrupts, info, text).await,
            Err(e) => Err(e),
        };
        let code = match result {
            Ok(Ending::Quit) => return Ok(status::CANCELLED),
            Ok(ending) => ending.status(),
            Err(e @ (CliError::Refused(_) | CliError::Usage(_))) => {
                pen.warn(&format!("bxctl: {}", text::line(&e.to_string())))?;
                e.status()
            }
            Err(e) => return Err(e),
        };
        worst = worse(worst, code);
    }
}

async fn turn(
    link: &mut Link,
    pen: &mut Pen,
    output: &mut Output,
    interrupts: &mut Interrupts,
    info: &SessionInfo,
    text: String,
) -> Result<Ending, CliError> {
    let turn = link.begin(Request::Send { session: info.id.clone(), text }).await?;
    output.own_turn(turn);
    let ending = follow(link, pen, output, interrupts, &mut Nobody, (&info.id, Some(turn))).await?;
    pen.end_answer()?;
    Ok(ending)
}

/// Reads a line; false at the end of the input. A daemon that goes away meanwhile is noticed.
async fn next_line(
    link: &mut Link,
    pen: &mut Pen,
    interrupts: &mut Interrupts,
    input: &mut BufReader<Stdin>,
    line: &mut Vec<u8>,
) -> Result<bool, CliError> {
    loop {
        let mut limited = (&mut *input).take(LINE_BYTES);
        tokio::select! {
            read = limited.read_until(b'\n', line) => {
                let read = read.map_err(|e| CliError::Failed(format!("cannot read the standard input: {e}")))?;
                return Ok(read > 0 || !line.is_empty());
            }
            // of turns of others in this session
            arrival = link.next(pen) => drop(arrival?),
            _ = interrupts.next() => return Err(CliError::Interrupted),
        }
    }
}

fn message(mut line: Vec<u8>, number: u64) -> Result<String, CliError> {
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    if u64::try_from(line.len()).unwrap_or(u64::MAX) >= LINE_BYTES {
        let mib = LINE_BYTES >> 20;
        return Err(CliError::Usage(format!("line {number} of the input is longer than {mib} MiB")));
    }
    String::from_utf8(line).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        CliError::Usage(format!("line {number} of the input is not UTF-8: the byte at {at} is wrong"))
    })
}

/// The worse of two exit statuses.
fn worse(one: u8, other: u8) -> u8 {
    let order =
        [status::OK, status::CANCELLED, status::USAGE, status::REFUSED, status::FAILED, status::NO_DAEMON];
    let rank = |code: u8| order.iter().position(|c| *c == code).unwrap_or(order.len());
    if rank(other) > rank(one) { other } else { one }
}
