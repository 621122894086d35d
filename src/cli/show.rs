//! `show` and `export`: a session's records, page by page, as text, Markdown or JSON.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde_json::Value;

use super::args::{Export, Format, Show};
use super::error::CliError;
use super::html::Page;
use super::link::{Link, unexpected};
use super::pen::Ability;
use super::text;
use super::transcript::{Markdown, Transcript};
use crate::proto::{LogRecord, Reply, Request, SessionId, SessionInfo, TokenIds, TurnId};

/// `bxctl show`.
///
/// # Errors
/// [`Link::ask`]'s, or when the output cannot be written.
pub async fn show(link: &mut Link, options: Show) -> Result<(), CliError> {
    let info = link.choose(options.session.as_deref()).await?;
    let mut out = BufWriter::new(io::stdout().lock());
    if options.json {
        json_array(link, &info.id, options.ids, &mut out).await?;
        writeln!(out)?;
    } else {
        let mut transcript = Transcript::new(Ability::of(&io::stdout()), options.ids);
        out.write_all(transcript.head(&info).as_bytes())?;
        each_record(link, &info.id, None, |record| Ok(out.write_all(transcript.record(record).as_bytes())?))
            .await?;
    }
    Ok(out.flush()?)
}

/// `bxctl export`.
///
/// # Errors
/// [`Link::ask`]'s, or when the file or the output cannot be written.
pub async fn export(link: &mut Link, options: Export) -> Result<(), CliError> {
    let info = link.choose(options.session.as_deref()).await?;
    let format = match (options.json, options.html) {
        (true, _) => Format::Json,
        (_, true) => Format::Html,
        _ => options.format,
    };
    let Some(path) = &options.output else {
        let mut out = BufWriter::new(io::stdout().lock());
        // exact for a program or a file, harmless on a terminal
        return write_export(link, &info, format, io::stdout().is_terminal(), &mut out).await;
    };
    let failed = |e: &dyn std::fmt::Display| CliError::Failed(format!("{}: {e}", path.display()));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|e| match e
        .kind()
    {
        io::ErrorKind::AlreadyExists => {
            failed(&"the file is there already, and nothing is written over; give another name, or remove it")
        }
        _ => failed(&e),
    })?;
    let mut out = BufWriter::new(file);
    let written = write_export(link, &info, format, false, &mut out).await;
    let written = match written {
        Ok(()) => out.get_ref().sync_all().map_err(|e| failed(&e)),
        // what was written is a file here, not an output that may have closed
        Err(CliError::Failed(why)) => Err(failed(&why)),
        Err(e) => Err(e),
    };
    if written.is_err() {
        remove_half(path);
    }
    written
}

/// A half-written export is of no use to anybody.
fn remove_half(path: &Path) {
    // that it stays behind is less important than why it is only half
    let _ = std::fs::remove_file(path);
}

async fn write_export(
    link: &mut Link,
    info: &SessionInfo,
    format: Format,
    safe: bool,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let show = |piece: String| if safe { text::block(&piece) } else { piece };
    match format {
        Format::Json => {
            let head = serde_json::to_string(info).map_err(not_json)?;
            write!(out, "{{\"session\":{},\n\"records\":", text::json_safe(&head))?;
            json_array(link, &info.id, true, out).await?;
            writeln!(out, "}}")?;
        }
        Format::Html => {
            let mut page = Page::default();
            let usage = link.usage(&info.id).await?;
            out.write_all(show(page.head(info, &usage)).as_bytes())?;
            each_record(link, &info.id, None, |record| {
                Ok(out.write_all(show(page.record(record)).as_bytes())?)
            })
            .await?;
            out.write_all(page.foot().as_bytes())?;
        }
        Format::Md => {
            let mut markdown = Markdown::default();
            out.write_all(show(markdown.head(info)).as_bytes())?;
            each_record(link, &info.id, None, |record| {
                Ok(out.write_all(show(markdown.record(record)).as_bytes())?)
            })
            .await?;
        }
    }
    Ok(out.flush()?)
}

/// Calls `f` with each record of a session, or of one of its turns, in order.
///
/// # Errors
/// [`Link::ask`]'s, or those of `f`.
pub async fn each_record(
    link: &mut Link,
    session: &SessionId,
    turn: Option<TurnId>,
    mut f: impl FnMut(&LogRecord) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let mut from = 0;
    loop {
        let (records, next) = match link.ask(Request::Export { session: session.clone(), from, turn }).await?
        {
            Reply::Records { records, next } => (records, next),
            reply => return Err(unexpected(&reply)),
        };
        records.iter().try_for_each(&mut f)?;
        match next {
            Some(next) if next > from => from = next,
            Some(_) => {
                return Err(CliError::Failed("the daemon gave the same page of records twice".to_owned()));
            }
            None => return Ok(()),
        }
    }
}

/// All records as a JSON array, one record a line.
async fn json_array(
    link: &mut Link,
    session: &SessionId,
    ids: bool,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let mut before = "[\n";
    each_record(link, session, None, |record| {
        let json = record_json(record, ids)?.to_string();
        write!(out, "{before}{}", text::json_safe(&json))?;
        before = ",\n";
        Ok(())
    })
    .await?;
    let end = if before == "[\n" { "[]" } else { "\n]" };
    Ok(write!(out, "{end}")?)
}

/// A record as JSON; token ids as numbers, or left out.
fn record_json(record: &LogRecord, ids: bool) -> Result<Value, CliError> {
    let mut value = serde_json::to_value(record).map_err(not_json)?;
    if let (LogRecord::AssistantMessage(message), Some(map)) = (record, value.as_object_mut()) {
        let lists: [(&str, &TokenIds); 2] = [("prompt_ids", &message.prompt_ids), ("ids", &message.ids)];
        for (key, list) in lists {
            if ids {
                map.insert(key.to_owned(), Value::from(list.0.clone()));
            } else {
                map.remove(key);
            }
        }
    }
    Ok(value)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn not_json(e: serde_json::Error) -> CliError {
    CliError::Failed(format!("a record cannot be written as JSON: {e}"))
}
