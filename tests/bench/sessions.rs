//! Sessions to measure with, written at once and not by way of the store: the same bytes in every run.

use std::fs;
use std::path::Path;

use boxmaker::proto::*;
use boxmaker::store::Baseline;

/// A baseline of usual size.
pub fn baseline() -> Baseline {
    let mut dice = Dice(7);
    let ids = TokenIds(vec![4]);
    let framing = Framing {
        tool_family: ToolFamily::Hermes,
        tools_by: ToolsBy::SystemPrompt,
        tool_results_by: ToolResultsBy::UserMessage,
        head: TokenIds(dice.ids(400)),
        user_open: ids.clone(),
        user_close: ids.clone(),
        tool_open: ids.clone(),
        tool_between: ids.clone(),
        tool_close: ids.clone(),
        stand_in: "(no answer)".to_owned(),
        stand_in_ids: ids,
        reasoning: None,
    };
    let model = ModelIdentity {
        api: "llama-server /completion".to_owned(),
        url: "unix:/run/llama.sock".to_owned(),
        alias: "bench".to_owned(),
        file: "bench.gguf".to_owned(),
        size: 1,
        template_digest: Digest::of(b"template"),
        n_ctx: 32_768,
        n_vocab: 150_000,
        build: "b1".to_owned(),
    };
    Baseline::freeze(BaselineContent {
        format: BASELINE_FORMAT,
        system_prompt: dice.text(800),
        tools: "[]".to_owned(),
        sampling: Sampling { temperature: Some(0.7), ..Sampling::default() },
        reasoning: ReasoningSettings { enabled: true },
        framing,
        model,
    })
    .expect("a baseline")
}

/// A record of any size that may stand anywhere.
pub fn named(name: &str) -> LogRecord {
    LogRecord::Named(Named { time: time(), name: name.to_owned() })
}

fn time() -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000)
}

/// Numbers that are the same in every run.
pub struct Dice(pub u64);

impl Dice {
    fn next(&mut self) -> u64 {
        // xorshift
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    fn ids(&mut self, count: usize) -> Vec<TokenId> {
        (0..count).map(|_| u32::try_from(self.next() % 150_000).unwrap()).collect()
    }

    /// Words, with what JSON has to escape among them.
    pub fn text(&mut self, bytes: usize) -> String {
        const WORDS: [&str; 12] = [
            "the",
            "board",
            "is",
            "warm\n",
            "\"really\"",
            "a",
            "kettle",
            "für",
            "house\tand",
            "garden",
            "no",
            "light",
        ];
        let mut text = String::new();
        while text.len() < bytes {
            text.push_str(WORDS[self.below(WORDS.len())]);
            text.push(' ');
        }
        text
    }
}

/// The eight records of a turn with one tool call, of about `bytes` each in the middle.
pub fn turn(dice: &mut Dice, turn: u64, bytes: usize) -> Vec<LogRecord> {
    let (time, turn, call) = (time(), TurnId(turn), CallId(turn));
    let name = "read_file".to_owned();
    let mut said = |text: usize, calls: Vec<ToolCall>| {
        let finish = if calls.is_empty() { Finish::Stop } else { Finish::ToolCalls };
        LogRecord::AssistantMessage(AssistantMessage {
            time,
            turn,
            text: dice.text(text),
            reasoning: None,
            tool_calls: calls,
            finish,
            prompt_ids: TokenIds(dice.ids(bytes / 20)),
            ids: TokenIds(dice.ids(text / 4 + 10)),
        })
    };
    let arguments = "{\"path\":\"/etc/hostname\",\"lines\":[1,200]}".to_owned();
    let calling = said(bytes / 8, vec![ToolCall { call, name: name.clone(), arguments }]);
    let answer = said(bytes * 9 / 8, Vec::new());
    let usage = Usage { cache_n: 900, prompt_n: 60, predicted_n: 80, ..Usage::default() };
    let usage = LogRecord::Usage(UsageRecord::new(time, turn, usage, 900));
    let result = ToolResult {
        time,
        turn,
        call,
        name: name.clone(),
        outcome: ToolOutcome::Ok,
        content: dice.text(bytes * 2),
        truncated_bytes: 0,
        millis: 12,
    };
    let end = TurnEnd { time, turn, outcome: TurnOutcome::Done, detail: None, millis: Some(2000) };
    vec![
        LogRecord::UserMessage(UserMessage { time, turn, text: dice.text(bytes / 4) }),
        calling,
        usage.clone(),
        LogRecord::ToolStart(ToolStart { time, turn, call, name }),
        LogRecord::ToolResult(result),
        answer,
        usage,
        LogRecord::TurnEnd(end),
    ]
}

/// Which records of such a turn go into one append.
pub const APPENDS: [usize; 4] = [1, 3, 1, 3];

/// How a session is made.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Epochs, each with the same number of turns.
    pub epochs: u32,
    /// Turns of an epoch.
    pub turns: u64,
    /// What [`turn`] takes.
    pub bytes: usize,
}

/// A session's files, name and bytes, and how many records they hold.
pub fn files(id: &str, shape: Shape) -> (Vec<(String, Vec<u8>)>, u64) {
    let (baseline, mut dice) = (baseline(), Dice(id.bytes().fold(1, |n, b| n * 31 + u64::from(b))));
    let (mut files, mut previous, mut records) = (Vec::new(), None, 0);
    for epoch in 0..shape.epochs {
        files.push((format!("{epoch}.baseline.json"), baseline.to_json().as_bytes().to_vec()));
        let start = LogRecord::SessionStart(SessionStart {
            time: time(),
            session: id.parse().unwrap(),
            epoch: Epoch(epoch),
            slot: 0,
            baseline: baseline.hash(),
            previous,
            origin: None,
        });
        let mut log = Log { bytes: Vec::new(), last: baseline.hash(), records: 0 };
        log.append(&[start]);
        let first = u64::from(epoch) * shape.turns;
        for n in first + 1..=first + shape.turns {
            let turn = turn(&mut dice, n, shape.bytes);
            let mut rest = turn.as_slice();
            for records in APPENDS {
                let (append, after) = rest.split_at(records);
                log.append(append);
                rest = after;
            }
        }
        previous = Some(log.last);
        records += log.records;
        files.push((format!("{epoch}.jsonl"), log.bytes));
    }
    (files, records)
}

/// Writes a session; gives how many records and bytes its logs have.
pub fn write(home: &Path, id: &str, shape: Shape) -> (u64, u64) {
    let dir = home.join("sessions").join(id);
    fs::create_dir_all(&dir).expect("make the session's folder");
    let (files, records) = files(id, shape);
    let mut logs = 0;
    for (name, bytes) in files {
        fs::write(dir.join(&name), &bytes).expect("write a file of the session");
        logs += if name.ends_with(".jsonl") { bytes.len() as u64 } else { 0 };
    }
    (records, logs)
}

struct Log {
    bytes: Vec<u8>,
    last: Digest,
    records: u64,
}

impl Log {
    fn append(&mut self, records: &[LogRecord]) {
        let (mut back, mut more) = (0, u32::try_from(records.len()).unwrap());
        for record in records {
            more -= 1;
            let line = encode_line(self.last, Place { back, more }, record).expect("a record's line");
            back += line.len() as u64;
            self.last = Digest::of(&line);
            self.bytes.extend_from_slice(&line);
            self.records += 1;
        }
    }
}
