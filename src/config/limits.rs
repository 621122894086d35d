//! Every limit, described once: the struct, the reading, the documentation's check and the messages all
//! follow from one table.

use super::read::Table;

/// What is known of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitInfo {
    /// Its key in `[limits]`.
    pub key: &'static str,
    /// What it counts.
    pub unit: &'static str,
    /// Its value when the file has none.
    pub default: u64,
    /// The least value allowed.
    pub least: u64,
    /// The greatest value allowed.
    pub most: u64,
    /// What it limits.
    pub about: &'static str,
    /// Whether SIGHUP can change it.
    pub reloadable: bool,
}

macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $variant:ident $key:ident: $unit:literal = $default:literal in $least:literal..=$most:literal, $reload:ident;)+) => {
        /// The limits in force. All of them have a default and a range; the unit is in the name.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Limits {
            $($(#[doc = $doc])+ pub $key: u64,)+
        }

        /// Names a limit, for messages.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Limit {
            $($(#[doc = $doc])+ $variant,)+
        }

        pub(super) const KEYS: &[&str] = &[$(stringify!($key)),+];

        impl Limit {
            /// All limits, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// What is known of it.
            #[must_use]
            pub const fn info(self) -> LimitInfo {
                match self {
                    $(Self::$variant => LimitInfo {
                        key: stringify!($key),
                        unit: $unit,
                        default: $default,
                        least: $least,
                        most: $most,
                        about: concat!($($doc),+),
                        reloadable: limits!(@ $reload),
                    },)+
                }
            }
        }

        impl Limits {
            /// The value in force.
            #[must_use]
            pub const fn get(&self, limit: Limit) -> u64 {
                match limit { $(Limit::$variant => self.$key,)+ }
            }

            /// Sets a value, as it is: the range is checked where the file is read.
            pub const fn set(&mut self, limit: Limit, value: u64) {
                match limit { $(Limit::$variant => self.$key = value,)+ }
            }
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }
    };
    (@ reload) => { true };
    (@ restart) => { false };
}

limits! {
    /// How often one turn may ask the model.
    TurnRequests turn_requests: "requests" = 50 in 1..=10_000, reload;
    /// How many tool calls one turn may make.
    TurnToolCalls turn_tool_calls: "calls" = 100 in 1..=10_000, reload;
    /// How long one turn may run, waiting for the model and tools included, but not for the slot or a person.
    TurnSeconds turn_seconds: "seconds" = 3_600 in 1..=604_800, reload;
    /// How long a call waits for a person's approval before it is denied.
    ApprovalSeconds approval_seconds: "seconds" = 86_400 in 1..=31_536_000, reload;
    /// How many tokens one turn may generate, over all its completions.
    TurnTokens turn_tokens: "tokens" = 32_768 in 1..=10_000_000, reload;
    /// How often the same call with the same arguments may follow itself before the turn is ended.
    RepeatedCalls repeated_calls: "calls" = 3 in 2..=1_000, reload;
    /// How many tokens one completion may generate, thinking included.
    CompletionTokens completion_tokens: "tokens" = 4_096 in 1..=1_000_000, reload;
    /// How many tokens the model may think in one completion; then its thinking is closed and the answer goes on.
    ThinkingTokens thinking_tokens: "tokens" = 2_048 in 1..=1_000_000, reload;
    /// How many tokens of the context are kept free for the answer; at most a quarter of what the prompt's head leaves.
    ContextReserveTokens context_reserve_tokens: "tokens" = 512 in 16..=1_000_000, reload;
    /// How often one turn may begin a new epoch by itself, from a summary, because the context is full; 0 never does, and `bxctl rebase` does it by hand.
    TurnRebases turn_rebases: "rebases" = 16 in 0..=100, reload;
    /// How long the summary may be with which a new epoch begins; at most a sixth of what the prompt's head leaves.
    SummaryTokens summary_tokens: "tokens" = 512 in 16..=100_000, reload;
    /// How much of the last turns a new epoch keeps word for word; at most a quarter of what the prompt's head leaves.
    KeptTokens kept_tokens: "tokens" = 2_048 in 0..=1_000_000, reload;
    /// How long one tool call may run.
    ToolSeconds tool_seconds: "seconds" = 120 in 1..=86_400, restart;
    /// How much of a tool's output the model is shown: its head and its tail.
    ToolOutputBytes tool_output_bytes: "bytes" = 8_192 in 256..=1_048_576, restart;
    /// How much of a tool's output is kept in a file beside the session.
    ToolSpillBytes tool_spill_bytes: "bytes" = 16_777_216 in 0..=4_294_967_296, restart;
    /// How long the start and the handshake of an MCP server may take.
    McpStartSeconds mcp_start_seconds: "seconds" = 30 in 1..=3_600, restart;
    /// How long one record of a log may be.
    RecordBytes record_bytes: "bytes" = 4_194_304 in 65_536..=67_108_864, restart;
    /// How long the logs of one session may grow together.
    SessionBytes session_bytes: "bytes" = 268_435_456 in 1_048_576..=68_719_476_736, restart;
    /// How many sessions are held in memory; the ones used longest ago are dropped from it.
    OpenSessions open_sessions: "sessions" = 8 in 1..=1_024, restart;
    /// How long a session that nobody uses is held in memory; 0 drops it only for another one.
    IdleSessionSeconds idle_session_seconds: "seconds" = 600 in 0..=604_800, restart;
    /// How long one message on the socket may be.
    MessageBytes message_bytes: "bytes" = 1_048_576 in 65_536..=16_777_216, restart;
    /// How many clients may be connected.
    Clients clients: "clients" = 32 in 1..=1_024, restart;
    /// How long a client that has connected may take to say hello before its place is given to another.
    HelloSeconds hello_seconds: "seconds" = 10 in 1..=3_600, restart;
    /// How many events wait for a slow client before it gets a snapshot instead.
    QueuedEvents queued_events: "events" = 1_024 in 16..=1_000_000, restart;
    /// How long the model server may send nothing at all, not even a sign of life, before its request counts as failed.
    ServerSilenceSeconds server_silence_seconds: "seconds" = 300 in 5..=86_400, restart;
    /// After how long without a turn the slot's cache is saved to slot_dir; 0 never saves it then.
    SlotQuietSeconds slot_quiet_seconds: "seconds" = 60 in 0..=86_400, reload;
    /// How much the saved caches of all sessions may come to; the ones saved longest ago are removed.
    SlotFilesBytes slot_files_bytes: "bytes" = 8_589_934_592 in 0..=1_099_511_627_776, reload;
    /// How long a running turn gets to end when the daemon is stopped; less than the unit's stop time.
    ShutdownSeconds shutdown_seconds: "seconds" = 20 in 1..=3_600, reload;
    /// How long the system prompt may be, from the file or its own file.
    SystemPromptBytes system_prompt_bytes: "bytes" = 16_384 in 1_024..=1_048_576, reload;
}

impl Limit {
    /// The limit with this key, as in `[limits]`.
    #[must_use]
    pub fn by_key(key: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|limit| limit.info().key == key)
    }
}

impl Limits {
    pub(super) fn read(table: &Table<'_, '_>) -> Self {
        let mut limits = Self::default();
        for limit in Limit::ALL {
            let info = limit.info();
            if let Some(value) = table.whole(info.key, info.least..=info.most, info.unit) {
                limits.set(*limit, value);
            }
        }
        limits
    }

    /// How to get past a limit, as in `raise [limits] turn_seconds (now 600)`.
    #[must_use]
    pub fn hint(&self, limit: Limit) -> String {
        let (info, now) = (limit.info(), self.get(limit));
        if now >= info.most {
            return format!("[limits] {} is {now}, the most that is allowed", info.key);
        }
        format!("raise [limits] {} (now {now})", info.key)
    }

    /// The limit in one line: name, value, unit, range and what it is for.
    #[must_use]
    pub fn describe(&self, limit: Limit) -> String {
        let LimitInfo { key, unit, default, least, most, about, .. } = limit.info();
        let now = self.get(limit);
        format!("[limits] {key} = {now} {unit} (default {default}, {least} to {most}):{about}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_in_its_range_and_every_name_ends_in_its_unit() {
        // Names whose unit is the thing itself.
        let things = ["repeated_calls", "clients"];
        for limit in Limit::ALL {
            let info = limit.info();
            assert!((info.least..=info.most).contains(&info.default), "{}", info.key);
            assert!(things.contains(&info.key) || info.key.ends_with(info.unit), "{}", info.key);
            assert_eq!(Limits::default().get(*limit), info.default);
            assert_eq!(Limit::by_key(info.key), Some(*limit));
            assert!(info.about.trim_end().ends_with('.'));
        }
        assert_eq!(Limit::by_key("turn"), None);
    }

    #[test]
    fn a_hint_names_the_key_and_the_value_in_force() {
        let mut limits = Limits { turn_seconds: 600, ..Limits::default() };
        assert_eq!(limits.hint(Limit::TurnSeconds), "raise [limits] turn_seconds (now 600)");
        limits.set(Limit::TurnSeconds, Limit::TurnSeconds.info().most);
        assert!(limits.hint(Limit::TurnSeconds).contains("the most that is allowed"));
        let line = limits.describe(Limit::Clients);
        assert!(
            line.starts_with("[limits] clients = 32 clients (default 32, 1 to 1024): How many"),
            "{line}"
        );
    }
}
