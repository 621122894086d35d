//! All that breaks the promise here, with its remedy: for `loopd check`, and for `bxctl doctor`, which the running
//! daemon answers.

mod disk;
mod flags;
mod machine;
mod mounts;
mod served;
mod tools;

use std::process::ExitCode;
use std::time::Duration;

use crate::config::{Config, Environment};
use crate::model::{Look, Server};
use crate::proto::{Finding, Level};
use crate::store;

use super::args::Common;
use super::{EXIT_CONFIG, fail};

/// Prints the configuration and the findings. Exit status: 0 when nothing breaks the promise, 1 when
/// something does, 78 when the configuration is wrong.
pub(super) fn check(common: &Common, offline: bool) -> ExitCode {
    let config = match Config::load(common.config.as_deref(), &common.overrides()) {
        Ok(config) => config,
        Err(e) => return fail(EXIT_CONFIG, &e),
    };
    print!("{}", config.to_toml());
    let mut findings = configured(&config);
    if offline {
        return report(&findings);
    }
    findings.extend(around(&config));
    match store::Uring::runtime() {
        Err(e) => findings.push(Finding::bad(e.to_string(), "")),
        Ok(runtime) => {
            findings.push(Finding::ok("io_uring works"));
            findings.extend(runtime.block_on(async {
                let (look, _lock) = served::how_far(&config.daemon.home);
                match connect(&config) {
                    Ok(server) => served::findings(&config, &server, look).await,
                    Err(finding) => vec![finding],
                }
            }));
        }
    }
    report(&findings)
}

/// What a running daemon finds. `look` tells whether the slot may be tried out.
pub(super) async fn while_serving(config: Config, server: &Server, look: Look) -> Vec<Finding> {
    let mut findings = configured(&config);
    let beside = config.clone();
    // a disk that hangs must not hold up the thread that does all the work
    match tokio::task::spawn_blocking(move || around(&beside)).await {
        Ok(found) => findings.extend(found),
        Err(e) => findings.push(Finding::bad(format!("the machine cannot be looked at: {e}"), "")),
    }
    findings.extend(served::findings(&config, server, look).await);
    findings
}

fn connect(config: &Config) -> Result<std::rc::Rc<Server>, Finding> {
    let key = config.model.read_api_key(&Environment::of_process());
    let key = key.map_err(|e| Finding::bad(e.to_string(), ""))?.map(|key| key.key.expose().to_owned());
    let silence = Duration::from_secs(config.limits.server_silence_seconds);
    Ok(Server::new(config.model.url.clone(), key, config.daemon.slot, silence))
}

/// What the configuration alone tells.
fn configured(config: &Config) -> Vec<Finding> {
    config.warnings().into_iter().map(|what| Finding::warn(what, "")).collect()
}

/// What the machine around tells, without the model server.
fn around(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(tools::findings(config));
    findings.extend(machine::findings(config));
    findings.extend(disk::home(config));
    findings.extend(disk::slots(config));
    findings
}

fn report(findings: &[Finding]) -> ExitCode {
    println!();
    for Finding { level, what, remedy } in findings {
        let mark = match level {
            Level::Ok => "ok  ",
            Level::Warn => "warn",
            Level::Bad => "BAD ",
        };
        println!("# {mark} {what}");
        if !remedy.is_empty() {
            println!("#      remedy: {remedy}");
        }
    }
    let bad = findings.iter().any(|finding| finding.level == Level::Bad);
    if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
