//! The kernel's limits for this process, and the clock.

use nix::sys::resource::{Resource, getrlimit};

use crate::config::Config;
use crate::proto::{Finding, Timestamp};

/// Descriptors beside those of sessions and clients.
const OTHER_FILES: u64 = 64;
/// No board that runs this has a clock that is right and shows less.
const EARLIEST: &str = "2025-01-01T00:00:00.000Z";

/// What is said of the machine.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let soft = |resource| getrlimit(resource).map_or(u64::MAX, |(soft, _)| soft);
    let mut findings = limits(config, soft(Resource::RLIMIT_NOFILE), soft(Resource::RLIMIT_FSIZE));
    findings.extend(clock(Timestamp::now()));
    findings
}

fn limits(config: &Config, files: u64, file_bytes: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    let needed =
        config.limits.open_sessions.saturating_add(config.limits.clients).saturating_add(OTHER_FILES);
    if files < needed {
        let what = format!(
            "this process may open {files} files, and {needed} are needed for [limits] open_sessions and clients"
        );
        findings
            .push(Finding::warn(what, format!("LimitNOFILE={needed} in the unit, or ulimit -n {needed}")));
    }
    if file_bytes < config.limits.session_bytes {
        let what = format!(
            "this process may write files of {file_bytes} bytes at most, and [limits] session_bytes is {}: a \
             session's log is refused before that",
            config.limits.session_bytes
        );
        findings.push(Finding::warn(what, "LimitFSIZE=infinity in the unit, or ulimit -f unlimited"));
    }
    findings
}

/// A clock that was never set: records then have times that mean nothing.
fn clock(now: Timestamp) -> Option<Finding> {
    let earliest: Timestamp = EARLIEST.parse().ok()?;
    (now < earliest).then(|| {
        let what = format!("the clock says {now}: it was never set, and records get that time");
        Finding::warn(what, "set it, or start loopd after time-sync.target")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;

    fn config() -> Config {
        Config::from_toml("", std::path::Path::new("loopd.toml"), &Overrides::default()).unwrap()
    }

    #[test]
    fn small_limits_are_told() {
        assert_eq!(limits(&config(), u64::MAX, u64::MAX), []);
        let few = limits(&config(), 32, u64::MAX);
        assert!(few.len() == 1 && few[0].remedy.contains("LimitNOFILE="), "{few:?}");
        let short = limits(&config(), u64::MAX, 1000);
        assert!(short.len() == 1 && short[0].remedy.contains("LimitFSIZE="), "{short:?}");
    }

    #[test]
    fn a_clock_that_was_never_set_is_told() {
        assert!(clock("1970-01-01T00:02:03.000Z".parse().unwrap()).is_some());
        assert_eq!(clock(Timestamp::now()), None);
    }
}
