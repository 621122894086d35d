//! The daemon's state and counters, for people and for Prometheus.

use std::fmt::Write as _;
use std::time::Duration;

use tokio::time::timeout;

use crate::model::Look;
use crate::proto::{Finding, ServerState, Status};
use crate::store;

use super::check;
use super::service::Daemon;

/// Name and version, as clients and the journal see them.
pub(super) const DAEMON: &str = concat!("loopd ", env!("CARGO_PKG_VERSION"));

/// How long the model server may take to tell about itself.
const ANSWER: Duration = Duration::from_secs(3);

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// The age of the oldest unfinished write or sync, in milliseconds; 0 when there is none.
fn oldest_sync_ms() -> u64 {
    store::oldest_sync_age().map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
}

impl Daemon {
    pub(super) async fn status(&self) -> Status {
        let (server, server_detail) = self.server.state().await;
        // a server that hangs must not hold up who wants to know how things are
        let identity = match server {
            ServerState::Ready => timeout(ANSWER, self.server.identity()).await.ok().and_then(Result::ok),
            _ => None,
        };
        let counters = self.agent.counters();
        Status {
            daemon: DAEMON.to_owned(),
            pid: std::process::id(),
            uptime_s: self.about.began.elapsed().as_secs(),
            home: self.about.home.clone(),
            slot: self.about.slot,
            url: self.about.url.clone(),
            server,
            server_detail,
            model: identity.as_ref().map(|m| m.alias.clone()),
            n_ctx: identity.as_ref().map(|m| m.n_ctx),
            slot_session: self.agent.slot_session(),
            running: self.agent.queue().holder(),
            waiting: count(self.agent.queue().waiting()),
            open_sessions: count(self.sessions.count()),
            clients: count(self.hub.clients()),
            oldest_sync_ms: oldest_sync_ms(),
            lost_n: counters.lost.get(),
            last_loss: counters.last_loss.borrow().clone(),
        }
    }

    /// Every reason why the promise might not hold here, and what is well.
    pub(super) async fn doctor(&self) -> Vec<Finding> {
        let config = self.config.borrow().clone();
        // no turn begins while the slot is tried out
        let idle = self.agent.idle_slot();
        let look = if idle.is_some() { Look::Try } else { Look::Ask };
        let mut findings = check::while_serving(config, &self.server, look).await;
        drop(idle);
        let counters = self.agent.counters();
        let lost = counters.lost.get();
        if let Some(last) = counters.last_loss.borrow().as_ref() {
            let what = format!("{lost} tokens were evaluated again since loopd started; last: {last}");
            findings.push(Finding::warn(what, "see docs/model-server.md, and journalctl EVENT=cache_lost"));
        }
        findings
    }

    pub(super) fn metrics(&self) -> String {
        let counters = self.agent.counters();
        let mut text = String::new();
        let mut add = |name: &str, kind: &str, help: &str, values: &[(&str, u64)]| {
            // writing to a String cannot fail
            let _ = writeln!(text, "# HELP boxmaker_{name} {help}\n# TYPE boxmaker_{name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "boxmaker_{name}{labels} {value}");
            }
        };
        let [done, cancelled, failed, limit] = &counters.turns;
        let turns = [
            ("{outcome=\"done\"}", done.get()),
            ("{outcome=\"cancelled\"}", cancelled.get()),
            ("{outcome=\"failed\"}", failed.get()),
            ("{outcome=\"limit\"}", limit.get()),
        ];
        add("turns_total", "counter", "Turns by how they ended.", &turns);
        let tokens = [
            ("{kind=\"cached\"}", counters.cached.get()),
            ("{kind=\"evaluated\"}", counters.evaluated.get()),
            ("{kind=\"generated\"}", counters.generated.get()),
        ];
        add("tokens_total", "counter", "Tokens taken from the cache, evaluated, generated.", &tokens);
        add("lost_tokens_total", "counter", "Tokens evaluated a second time.", &[("", counters.lost.get())]);
        add(
            "turns_waiting",
            "gauge",
            "Turns that wait for the slot.",
            &[("", count(self.agent.queue().waiting()))],
        );
        add("open_sessions", "gauge", "Sessions held in memory.", &[("", count(self.sessions.count()))]);
        add("clients", "gauge", "Clients connected.", &[("", count(self.hub.clients()))]);
        add(
            "oldest_sync_milliseconds",
            "gauge",
            "Age of the oldest unfinished write or sync.",
            &[("", oldest_sync_ms())],
        );
        add(
            "uptime_seconds",
            "gauge",
            "Since the daemon started.",
            &[("", self.about.began.elapsed().as_secs())],
        );
        text
    }
}
