//! Opening sessions, verified whole, beside reading the same lines with `serde_json::from_str` and no check at all.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use boxmaker::proto::{Digest, Finish, Line, SessionId, ToolCall, ToolOutcome, TurnOutcome};
use boxmaker::store::{Session, Uring};
use serde::Deserialize;

use crate::measure::{Pair, Times, shown};
use crate::report::Row;
use crate::sessions::{self, Shape};

/// A line as somebody would read it who trusts it: the same fields, whatever else there is passed over.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(dead_code, reason = "read, as the store's records are, and not used")]
enum Plain {
    SessionStart {
        time: String,
        session: String,
        epoch: u32,
        slot: u32,
        baseline: String,
        previous: Option<String>,
    },
    UserMessage {
        time: String,
        turn: u64,
        text: String,
    },
    AssistantMessage {
        time: String,
        turn: u64,
        text: String,
        reasoning: Option<String>,
        #[serde(default)]
        tool_calls: Vec<ToolCall>,
        finish: Finish,
        prompt_ids: String,
        ids: String,
    },
    ToolStart {
        time: String,
        turn: u64,
        call: u64,
        name: String,
    },
    ToolResult {
        time: String,
        turn: u64,
        call: u64,
        name: String,
        outcome: ToolOutcome,
        content: String,
        truncated_bytes: u64,
        millis: u64,
    },
    Usage {
        time: String,
        turn: u64,
        cache_n: u64,
        prompt_n: u64,
        predicted_n: u64,
        millis: u64,
    },
    TurnEnd {
        time: String,
        turn: u64,
        outcome: TurnOutcome,
        detail: Option<String>,
        millis: Option<u64>,
    },
}

/// Reads every log of a session, and keeps the records of the newest.
fn plain(dir: &Path, epochs: u32) -> usize {
    let mut newest = Vec::new();
    for epoch in 0..epochs {
        newest.clear();
        let text = fs::read_to_string(dir.join(format!("{epoch}.jsonl"))).expect("read a log");
        newest.extend(text.lines().map(|line| serde_json::from_str::<Plain>(line).expect("a line")));
    }
    newest.len()
}

const LONG: Shape = Shape { epochs: 10, turns: 1250, bytes: 1210 };
const SHORT: Shape = Shape { epochs: 1, turns: 250, bytes: 1100 };

/// A long session and a short one.
pub fn rows(home: &Path) -> Vec<Row> {
    let (records, bytes) = sessions::write(home, "long", LONG);
    let (few, less) = sessions::write(home, "short", SHORT);
    let runtime = Uring::runtime().expect("io_uring");
    let open = |id: &str| {
        let id: SessionId = id.parse().unwrap();
        let began = Instant::now();
        let session = runtime.block_on(Session::open(home, &id)).expect("it opens");
        let took = began.elapsed();
        (session.records().len(), took)
    };
    let dir = home.join("sessions/long");
    let mut pair = Pair::default();
    for round in 0..15 {
        let (mut kept, mut parsed) = (0, 0);
        let ours = || {
            let took;
            (kept, took) = open("long");
            took
        };
        let reference = || {
            let began = Instant::now();
            parsed = plain(&dir, LONG.epochs);
            began.elapsed()
        };
        pair.measure(round, ours, reference);
        assert_eq!(kept, parsed, "both keep the newest epoch");
    }
    let faster = 1.0 / pair.ratio();
    let speed = bytes as f64 / 1e6 / pair.ours.median().as_secs_f64();
    let mut short = Times::default();
    for _ in 0..41 {
        short.push(open("short").1);
    }
    let (grown, newest) = memory(home);
    let short_median = short.median();
    let [digests, records_alone] = parts(&dir);
    vec![
        Row::new(
            format!("open {records} records, {:.0} MB, verified whole", bytes as f64 / 1e6),
            format!("{} ({speed:.0} MB/s)", pair.ours.shown()),
        )
        .beside(
            format!("`serde_json::from_str` a line: {}", pair.reference.shown()),
            format!("{faster:.2} × as fast"),
        )
        .goal("≥ 1.2 × as fast", faster >= 1.2),
        Row::new("of that, the SHA-256 of every line", digests.shown()),
        Row::new("of that, every line's checksum and record", records_alone.shown()),
        Row::new("its memory, at most while it is opened", format!("{:.1} MB", grown as f64 / 1e6))
            .beside(
                format!("the newest epoch's log: {:.1} MB", newest as f64 / 1e6),
                format!("{:.2}", grown as f64 / newest as f64),
            )
            .goal("of the newest epoch only: ≤ 2 × its log", grown <= 2 * newest),
        Row::new(format!("open {few} records, {:.1} MB", less as f64 / 1e6), shown(short_median))
            .goal("< 15 ms", short_median < Duration::from_millis(15)),
    ]
}

/// What opening cannot do without, each alone over the same lines: their digests, and their records.
fn parts(dir: &Path) -> [Times; 2] {
    let logs: Vec<Vec<u8>> = (0..LONG.epochs)
        .map(|epoch| fs::read(dir.join(format!("{epoch}.jsonl"))).expect("read a log"))
        .collect();
    let lines: Vec<&[u8]> = logs.iter().flat_map(|log| log.split_inclusive(|byte| *byte == b'\n')).collect();
    let mut parts = [Times::default(), Times::default()];
    for _ in 0..5 {
        parts[0]
            .time(|| lines.iter().for_each(|line| assert_ne!(Digest::of(line), Digest::from_bytes([0; 32]))));
        parts[1].time(|| lines.iter().for_each(|line| drop(Line::decode(line).expect("a record"))));
    }
    parts
}

/// By how many bytes a process grows, at most, that opens the long session; and the length of its newest log.
fn memory(home: &Path) -> (u64, u64) {
    let program = std::env::current_exe().expect("its own path");
    let output = Command::new(program).arg("open-and-tell").arg(home).output().expect("run itself");
    assert!(output.status.success(), "{output:?}");
    let grown = String::from_utf8(output.stdout).unwrap().trim().parse().expect("a number");
    let newest = home.join("sessions/long").join(format!("{}.jsonl", LONG.epochs - 1));
    (grown, fs::metadata(newest).expect("the newest log").len())
}

/// The other process: opens the long session and prints by how many bytes its memory grew at most.
pub fn tell(home: &Path) {
    let runtime = Uring::runtime().expect("io_uring");
    let high_water = || crate::memory::memory("self", "VmHWM");
    let before = high_water();
    let session = runtime.block_on(Session::open(home, &"long".parse().unwrap())).expect("it opens");
    println!("{}", high_water() - before);
    drop(session);
}
