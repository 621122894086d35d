//! Where messages of the daemon go: the journal when systemd runs us, else standard error.

use log::LevelFilter;

/// Sets the logger up, once. With the journal, each message keeps its fields (`SESSION`, `TURN`, `EVENT`,
/// …), so that `journalctl -u loopd SESSION=<id>` works. No text of a conversation is ever logged.
///
/// # Errors
/// A logger is set already.
pub(super) fn init(level: LevelFilter) -> Result<(), log::SetLoggerError> {
    if systemd_journal_logger::connected_to_journal()
        && let Ok(journal) = systemd_journal_logger::JournalLog::new()
    {
        journal.with_syslog_identifier("loopd".to_owned()).install()?;
        log::set_max_level(level);
        return Ok(());
    }
    let mut builder = env_logger::Builder::new();
    builder.filter_level(level).format_target(false);
    if let Ok(filter) = std::env::var("RUST_LOG") {
        builder.parse_filters(&filter);
    }
    builder.try_init()
}
