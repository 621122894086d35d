//! The power goes in the middle of turns: a real `loopd` on a real kernel, on ext4 with a journal, whose
//! unsynced data is really gone; and legal crash states of a recorded disk, down to single sectors.
//!
//! Short here; `make power-cut N=1000` for as many cuts and ten times as many states.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs, reason = "tests")]

mod early;
mod guest;
mod ledger;
mod record;
mod shutdown;
#[path = "../store_support/mod.rs"]
mod store_support;
#[path = "../support/mod.rs"]
mod support;
mod uml;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ledger::{Told, lost, opens};
use support::bench::Bench;
use support::mounted::Mounted;
use support::random::{Rng, number, seed};
use support::scripted_server::Script;
use uml::{Disks, Guest};

/// A guest that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "a child of the cuts, run in the guest"]
fn guest_with_the_daemon() {
    guest::daemon();
}

#[test]
#[ignore = "a child of the cuts, run in the guest"]
fn guest_with_a_planted_bug() {
    guest::early();
}

/// What a run of cuts came to.
#[derive(Debug, Default)]
struct Cuts {
    told: Vec<Told>,
    lost: Vec<String>,
    refused: usize,
}

/// Boots, waits for work to begin, and cuts the power at a random moment: as often as asked, and once more to
/// look at what the last cut left.
fn cut(test: &str, times: u64, rng: &mut Rng, last_words: &str) -> Cuts {
    let disks = Disks::new();
    let mut cuts = Cuts::default();
    for round in 0..=times {
        let mut guest = Guest::boot(&disks, test, &[]);
        let ready = guest.until(if round == times { last_words } else { "READY" }, PATIENCE);
        assert!(ready, "boot {round}: the conversation does not go on:\n{}", guest.said.join("\n"));
        guest.until("\0", Duration::from_millis(if round == times { 0 } else { 20 + rng.next() % 900 }));
        guest.cut();
        let mut ledger = fs::File::options().create(true).append(true).open(disks.ledger()).unwrap();
        for line in &guest.said {
            if line.starts_with("LOST") {
                cuts.lost.push(format!("boot {round}: {line}"));
            }
            cuts.refused += usize::from(line.starts_with("REFUSED"));
            assert!(!line.contains("panicked at"), "boot {round}:\n{}", guest.said.join("\n"));
            if let Some(told) = Told::parse(line) {
                writeln!(ledger, "{told}").unwrap();
                cuts.told.push(told);
            }
        }
    }
    cuts
}

#[test]
fn what_was_told_survives_power_cuts_and_the_conversation_goes_on() {
    if let Some(reason) = uml::missing() {
        return support::skip(&reason);
    }
    let (begin, times) = (Instant::now(), number("BOXMAKER_POWER_CUTS", 3));
    // the last boot has to end a turn
    let (mut cuts, mut rng) = (Cuts::default(), Rng::new(seed()));
    // a new disk before the sessions have filled it
    for first in (0..times).step_by(25) {
        let more = cut("guest_with_the_daemon", 25.min(times - first), &mut rng, "READY");
        cuts.told.extend(more.told);
        cuts.lost.extend(more.lost);
        cuts.refused += more.refused;
    }
    println!(
        "{times} power cuts, {} things told, {} sessions refused and repaired, {} lost, {:.1} s",
        cuts.told.len(),
        cuts.refused,
        cuts.lost.len(),
        begin.elapsed().as_secs_f64()
    );
    assert!(cuts.lost.is_empty(), "{:#?}", cuts.lost);
    assert!(cuts.told.len() as u64 > times, "hardly anything was told: {:#?}", cuts.told);
}

#[test]
fn the_power_cut_finds_an_append_that_is_acknowledged_before_its_sync() {
    if let Some(reason) = uml::missing() {
        return support::skip(&reason);
    }
    let cuts = cut("guest_with_a_planted_bug", 1, &mut Rng::new(seed()), "CHECKED");
    assert!(!cuts.lost.is_empty(), "the planted bug was not found; told was {:#?}", cuts.told);
}

/// A recorded run of turns: the disk before it, what reached the disk, and what was told.
struct Recording {
    base: Vec<u8>,
    entries: Vec<record::Entry>,
    told: Vec<Told>,
    disks: Disks,
}

fn record(options: &str, turns: u64) -> Recording {
    let disks = Disks::new();
    let base = fs::read(disks.disk()).unwrap();
    let turns = turns.to_string();
    let settings = [("BX_RECORD", "1"), ("BX_OPTIONS", options), ("BX_TURNS", &turns)];
    let mut guest = Guest::boot(&disks, "guest_with_the_daemon", &settings);
    let ended = guest.until("GUEST: end", PATIENCE);
    guest.cut();
    let passed = guest.said.iter().any(|line| line.contains("1 passed"));
    assert!(ended && passed, "the guest did not end well:\n{}", guest.said.join("\n"));
    let told = guest.said.iter().filter_map(|line| Told::parse(line)).collect();
    Recording { base, entries: record::read(&disks.record()).unwrap(), told, disks }
}

/// Checks random crash states of a recording; with `go_on`, the real daemon takes up each so many-th. Gives
/// what was lost, and how many sessions were refused and repaired.
fn check_states(recording: &Recording, states: u64, go_on: u64, rng: &mut Rng) -> (Vec<String>, usize) {
    let Recording { base, entries, told, disks } = recording;
    let at = disks.dir().join("mounted");
    // in memory where there is room for that: each state is a whole disk
    let memory = Path::new("/dev/shm");
    let images = tempfile::tempdir_in(if memory.is_dir() { memory } else { disks.dir() }).unwrap();
    let runtime = boxmaker::store::Uring::runtime().expect("io_uring");
    let (mut wrong, mut repaired, mut checked) = (Vec::new(), 0, 0);
    for n in 0..states {
        let end = rng.below(entries.len() + 1);
        let marks = entries[..end].iter().filter_map(|entry| match entry {
            record::Entry::Told(number) => Some(*number),
            _ => None,
        });
        let known = marks.max().map_or(0, |number| number + 1);
        let known: Vec<Told> = told.iter().filter(|told| told.number < known).cloned().collect();
        // another file for each state: a block device remembers what an earlier one held
        let image = images.path().join(n.to_string());
        fs::write(&image, record::state(base, entries, end, || rng.next())).unwrap();
        let mounted = Mounted::image(&image, &at).or_else(|_| {
            // ext4 writes its superblock, two sectors, in place and without its journal: torn between the two it
            // has a wrong checksum, and is put right by the e2fsck that runs at boot
            checked += 1;
            let _ = Command::new("e2fsck").arg("-fy").arg(&image).output();
            Mounted::image(&image, &at)
        });
        let found = match mounted {
            Err(why) => vec![format!("the file system does not mount: {why}")],
            Ok(_mounted) => {
                let mut found = lost(&at, &known);
                if at.join("home/sessions").is_dir() {
                    let (more, cut) = runtime.block_on(opens(&at.join("home"), &known));
                    repaired += cut;
                    found.extend(more);
                    found.extend(lost(&at, &known));
                    if go_on > 0 && n % go_on == 0 && found.is_empty() {
                        goes_on(&at.join("home"));
                    }
                }
                found
            }
        };
        fs::remove_file(&image).unwrap();
        wrong.extend(found.into_iter().map(|what| format!("state {n}, cut after {end} entries: {what}")));
    }
    println!("{checked} of {states} states were mounted after an e2fsck");
    (wrong, repaired)
}

/// The real daemon takes a home up: each session is listed as whole, and one of them goes on.
fn goes_on(home: &Path) {
    let mut bench = Bench::prepare("", |_| String::new());
    bench.gone = true;
    fs::create_dir(bench.home()).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(bench.home(), fs::Permissions::from_mode(0o700)).unwrap();
    let bound = Mounted::bind(home, bench.home()).unwrap();
    bench.start_daemon();
    let mut talk = bench.talk();
    let ids = bench.sessions();
    for id in &ids {
        assert_ne!(talk.info(id).state, boxmaker::proto::SessionState::Damaged, "{id}");
    }
    if let Some(id) = ids.first() {
        bench.server.push(Script::say("We go on."));
        talk.attach(id, None);
        let told = support::talk::told(&talk.turn(id, "Go on."));
        assert_eq!(told.last().unwrap(), "turn_end done");
    }
    drop(talk);
    bench.kill_daemon();
    drop(bound);
}

#[test]
fn what_was_told_is_in_every_legal_state_of_the_disk() {
    if let Some(reason) = uml::missing() {
        return support::skip(&reason);
    }
    let (begin, states) = (Instant::now(), number("BOXMAKER_POWER_CUTS", 8) * 10);
    let mut rng = Rng::new(seed());
    let recording = record("rw", 24);
    let flushes = recording.entries.iter().filter(|e| matches!(e, record::Entry::Flush)).count();
    let (wrong, repaired) = check_states(&recording, states, 40, &mut rng);
    println!(
        "{states} states of {} entries with {flushes} flushes and {} things told: {} wrong, {repaired} sessions \
         refused and repaired, {:.1} s",
        recording.entries.len(),
        recording.told.len(),
        wrong.len(),
        begin.elapsed().as_secs_f64()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(recording.told.len() > 70 && flushes > 70, "hardly anything was recorded");

    // the same without write barriers, which is as if nothing was ever flushed: the checks must find it
    let (wrong, _) = check_states(&record("rw,nobarrier", 8), 20, 0, &mut rng);
    assert!(!wrong.is_empty(), "a disk that is never flushed was not found");
}
