//! Speed, memory and size, each measured beside its reference in the same run: `make bench`. Prints each line as it is measured, and writes `docs/performance.md` and its plot.
//!
//! `bench [PART]…` measures only some parts, and writes nothing. What needs a disk uses `BOXMAKER_BENCH_DIR` as well,
//! when it is set: a fresh ext4 with a journal.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_precision_loss
)]

mod ahead;
mod append;
mod growth;
mod listing;
mod measure;
#[path = "../support/memory.rs"]
mod memory;
mod open;
mod place;
mod report;
mod rest;
mod ring;
#[path = "../support/scripted_server/mod.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod scripted_server;
mod sessions;
mod stream;
#[path = "../support/talk.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod talk;
mod turn;

use std::path::{Path, PathBuf};

use report::Report;

const PARTS: [&str; 8] = ["append", "turn", "ahead", "open", "listing", "stream", "rest", "growth"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, home] = arguments.as_slice()
        && word == "open-and-tell"
    {
        return open::tell(Path::new(home));
    }
    let unknown = arguments.iter().find(|word| !PARTS.contains(&word.as_str()));
    assert!(unknown.is_none(), "there is no part {unknown:?}; there are {PARTS:?}");
    let mut report = Report::default();
    let busy = load();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for part in PARTS {
        if arguments.is_empty() || arguments.iter().any(|word| word == part) {
            measure(part, &mut report, &docs);
        }
    }
    let (met, all) = report.goals();
    println!("{met} of {all} goals are met");
    if arguments.is_empty() {
        report.text("machine", machine(&busy));
        report.text("sections", rest::sections());
        report.text("goals", format!("{met} of {all} goals are met."));
        let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("page.md");
        report.write(&template, &docs.join("performance.md"));
    }
}

fn measure(part: &str, report: &mut Report, docs: &Path) {
    match part {
        "append" => on_disks(|dir, place| {
            report.add("durable", append::appends(dir, place));
            report.add("durable", append::at_once(dir, place));
        }),
        "turn" => on_disks(|dir, place| report.add("durable", turn::rows(dir, place))),
        "ahead" => on_disks(|dir, place| report.add("ahead", ahead::rows(dir, place))),
        "open" => {
            let home = tempfile::tempdir().expect("make a folder");
            report.add("reading", open::rows(home.path()));
        }
        "listing" => report.add("reading", listing::rows()),
        "stream" => report.add("stream", stream::rows()),
        "rest" => {
            report.add("rest", rest::sizes());
            report.add("rest", rest::memories());
        }
        _ => report.add("growth", growth::rows(&docs.join("growth.svg"))),
    }
}

/// Runs a measurement on each disk that there is.
fn on_disks(mut work: impl FnMut(&Path, &str)) {
    let journal = std::env::var_os("BOXMAKER_BENCH_DIR").map(PathBuf::from);
    let places = journal.map(|dir| (dir, "ext4 with a journal")).into_iter();
    for (dir, place) in places.chain([(std::env::temp_dir(), "as the machine is")]) {
        let home = tempfile::Builder::new().prefix("bench-").tempdir_in(dir).expect("make a folder");
        work(home.path(), place);
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The machine's load average of the last minute.
fn load() -> String {
    read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned()
}

/// What the numbers were measured on, and how busy it was with other things before.
fn machine(busy: &str) -> String {
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name").map(|l| l.trim_start_matches(['\t', ' ', ':'])));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!(
        "{cores} cores of {}, Linux {}; load average before the run {busy}, at its end {}.",
        model.unwrap_or("an unknown processor"),
        kernel.trim(),
        load()
    )
}
