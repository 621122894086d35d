//! The man pages of both programs, from the definitions of their command lines.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Command;
use clap_mangen::Man;

/// Writes a page for a program and one for each of its commands that is not hidden. Their date is that of
/// `SOURCE_DATE_EPOCH`, where it is set: then the same pages come out each time.
///
/// # Errors
/// When a page cannot be written.
pub fn write(mut program: Command, folder: &Path) -> io::Result<()> {
    program.build();
    let date = date();
    let version = program.get_version().unwrap_or_default().to_owned();
    let page = |command: Command, name: String| {
        let mut text = Vec::new();
        Man::new(command)
            .title(name.to_uppercase())
            .section("1")
            .date(&date)
            .source(format!("boxmaker {version}"))
            .manual("boxmaker")
            .render(&mut text)?;
        // breaks around an empty line are none, and are warned of where pages are checked
        let text = String::from_utf8_lossy(&text).replace("\n.br\n\n.br\n", "\n.sp\n");
        fs::write(folder.join(format!("{name}.1")), text)
    };
    for command in program.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        page(command.clone(), format!("{}-{}", program.get_name(), command.get_name()))?;
    }
    let name = program.get_name().to_owned();
    page(program, name)
}

/// The day, as pages have it.
fn date() -> String {
    let told = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    let time = told.map_or_else(SystemTime::now, |seconds| UNIX_EPOCH + Duration::from_secs(seconds));
    let jiff = jiff::Timestamp::try_from(time).unwrap_or_default();
    jiff.strftime("%Y-%m-%d").to_string()
}
