//! Damage of every kind: it is found, named by file and line, and nothing is repaired unasked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod store_support;

use std::path::{Path, PathBuf};

use boxmaker::proto::*;
use boxmaker::store::*;
use store_support::sim::Sim;
use store_support::*;

fn file(session: &str, name: &str) -> PathBuf {
    Path::new("/home/sessions").join(session).join(name)
}

/// A closed session of one turn with tools, its bytes and its records.
async fn session(sim: &Sim, name: &str) -> (Vec<u8>, Vec<LogRecord>) {
    let mut session = catalog(sim).create(Some(id(name)), baseline(), 0, None).await.unwrap();
    session.append(user(1, "What?")).await.unwrap();
    session.append_all(vec![calling(1, &[1]), usage(1, 3)]).await.unwrap();
    session.append(tool_start(1, 1)).await.unwrap();
    session.append(tool_result(1, 1, ToolOutcome::Ok)).await.unwrap();
    session.append_all(vec![assistant(1, "This."), usage(1, 9), turn_end(1)]).await.unwrap();
    (sim.read(&file(name, "0.jsonl")).unwrap(), session.records().to_vec())
}

/// Where each line begins, and the end.
fn lines(log: &[u8]) -> Vec<usize> {
    let mut at = vec![0];
    at.extend(log.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(n, _)| n + 1));
    at
}

/// What opening says of a log: the records, or the line and why.
async fn opened(sim: &Sim, log: Vec<u8>) -> Result<Vec<LogRecord>, (u64, String)> {
    sim.put(&file("a", "0.jsonl"), log.clone());
    let result = match catalog(sim).open(&id("a")).await {
        Ok((session, _)) => Ok(session.records().to_vec()),
        Err(SessionError::Torn { path, line, why }) => {
            assert_eq!(path, file("a", "0.jsonl"));
            Err((line, why))
        }
        Err(e) => panic!("{e}"),
    };
    assert_eq!(sim.read(&file("a", "0.jsonl")).unwrap(), log, "opening wrote");
    result
}

#[test]
fn a_flip_of_any_bit_is_refused_with_its_line() {
    simulated(async {
        let sim = Sim::new(1);
        let (log, _) = session(&sim, "a").await;
        let starts = lines(&log);
        for at in 0..log.len() {
            let line = starts.iter().filter(|start| **start <= at).count() as u64;
            for bit in [0, 1, 5, 7] {
                let mut damaged = log.clone();
                damaged[at] ^= 1 << bit;
                let (found, why) = opened(&sim, damaged).await.expect_err("damage was not found");
                assert_eq!(found, line, "byte {at}, bit {bit}: {why}");
                let way = if line <= 6 { "loopd recover a" } else { "loopd repair a" };
                assert!(why.contains(way), "byte {at}, line {line}: {why}");
            }
        }
    });
}

#[test]
fn a_log_cut_anywhere_opens_or_has_a_torn_tail_that_can_be_repaired() {
    simulated(async {
        let sim = Sim::new(1);
        let (log, records) = session(&sim, "a").await;
        let starts = lines(&log);
        // lines after which an append ended
        let ends = [1, 2, 4, 5, 6, 9];
        for cut in 1..=log.len() {
            let whole_lines = starts.iter().filter(|start| **start > 0 && **start <= cut).count();
            let good = ends.iter().copied().filter(|end| *end <= whole_lines).max().unwrap_or(0);
            match opened(&sim, log[..cut].to_vec()).await {
                Ok(read) => {
                    assert_eq!(cut, starts[good], "opened although it is cut in an append");
                    assert_eq!(read, records[..good]);
                }
                Err((_, why)) if good == 0 => assert!(why.contains("creation was cut off"), "{why}"),
                Err((line, why)) => {
                    assert!(line > good as u64, "{line} {good}");
                    assert!(why.contains("torn end") && why.contains("loopd repair a"), "{why}");
                    let Remedy::Cut(done) = catalog(&sim).repair(&id("a")).await.unwrap() else { panic!() };
                    assert_eq!(done.line, good as u64 + 1);
                    assert_eq!(done.keep, starts[good] as u64);
                    assert_eq!(sim.read(&done.saved).unwrap(), &log[starts[good]..cut]);
                    assert_eq!(sim.read(&file("a", "0.jsonl")).unwrap(), &log[..starts[good]]);
                }
            }
        }
    });
}

#[test]
fn lost_sectors_anywhere_in_the_last_append_are_a_torn_tail() {
    simulated(async {
        let sim = Sim::new(1);
        let (log, _) = session(&sim, "a").await;
        let last_append = lines(&log)[6];
        for from in last_append..log.len() {
            for len in [1, 40, 200, 700] {
                let mut torn = log.clone();
                let to = (from + len).min(torn.len());
                torn[from..to].fill(0);
                let (line, why) = opened(&sim, torn).await.unwrap_err();
                assert!(line >= 7 && why.contains("torn end"), "{from}..{to}: {line}: {why}");
            }
        }
    });
}

#[test]
fn damage_in_the_middle_is_never_taken_for_a_torn_tail() {
    simulated(async {
        let sim = Sim::new(1);
        let (log, _) = session(&sim, "a").await;
        let starts = lines(&log);
        for line in 0..6 {
            let (from, to) = (starts[line], starts[line + 1]);
            for zeros in [vec![0; 312], vec![0; to - from - 1]] {
                let damaged = [&log[..from], &zeros, b"\n", &log[to..]].concat();
                let (found, why) = opened(&sim, damaged).await.unwrap_err();
                assert_eq!(found, line as u64 + 1);
                let follow = format!("{} good lines follow", 8 - line);
                assert!(why.contains("NUL bytes") && why.contains(&follow), "{why}");
                let remedy = catalog(&sim).repair(&id("a")).await.unwrap();
                assert!(matches!(remedy, Remedy::Refused(_)), "{remedy:?}");
            }
            // a line that is gone, and one that is there twice
            let (found, why) = opened(&sim, [&log[..from], &log[to..]].concat()).await.unwrap_err();
            assert_eq!(found, line as u64 + 1, "{why}");
            assert!(!why.contains("torn end"), "{why}");
            let (found, why) = opened(&sim, [&log[..to], &log[from..]].concat()).await.unwrap_err();
            assert_eq!(found, line as u64 + 2, "{why}");
            assert!(!why.contains("torn end"), "{why}");
        }
    });
}

#[test]
fn oddities_of_text_files_are_damage() {
    simulated(async {
        let sim = Sim::new(1);
        let (log, _) = session(&sim, "a").await;
        let crlf = String::from_utf8(log.clone()).unwrap().replace('\n', "\r\n").into_bytes();
        assert_eq!(opened(&sim, crlf).await.unwrap_err().0, 1);
        let bom = [b"\xef\xbb\xbf".as_slice(), &log].concat();
        assert_eq!(opened(&sim, bom).await.unwrap_err().0, 1);
        let blank = [&log[..lines(&log)[3]], b"\n", &log[lines(&log)[3]..]].concat();
        assert_eq!(opened(&sim, blank).await.unwrap_err().0, 4);
        let blank_at_end = [&log[..], b"\n"].concat();
        assert_eq!(opened(&sim, blank_at_end).await.unwrap_err().0, 10);
        for tail in [vec![0; 312], [vec![0; 312], b"\n".to_vec()].concat()] {
            let (line, why) = opened(&sim, [log.clone(), tail].concat()).await.unwrap_err();
            assert!(line == 10 && why.contains("torn end"), "{line}: {why}");
        }
    });
}

/// A line whose checksum and chain are right, with any text in between.
fn forged(log: &[u8], fields: &str) -> Vec<u8> {
    let starts = lines(log);
    let last = &log[starts[starts.len() - 2]..];
    let mut line = format!("{{\"prev\":\"{}\",{fields}", Digest::of(last)).into_bytes();
    let crc = crc32fast::hash(&line);
    line.extend(format!(",\"crc\":\"{crc:08x}\"}}\n").into_bytes());
    line
}

#[test]
fn what_a_newer_version_wrote_is_named_and_never_cut_away() {
    simulated(async {
        let sim = Sim::new(1);
        let (log, _) = session(&sim, "a").await;
        let time = "\"time\":\"2026-01-31T23:59:59.999Z\"";
        for (fields, says) in [
            (format!("\"type\":\"future\",{time}"), "unknown kind \"future\""),
            (format!("\"type\":\"named\",{time},\"name\":\"x\",\"colour\":1"), "unknown field `colour`"),
            (format!("\"type\":\"named\",{time},\"name\":\"x\",\"name\":\"y\""), "duplicate field"),
            (format!("\"type\":\"named\",{time}"), "missing field `name`"),
            (format!("\"type\":\"turn_end\",{time},\"turn\":1,\"outcome\":\"done\""), "turn 1 is not open"),
            (format!("\"more\":1,\"type\":\"named\",{time},\"name\":\"x\""), "ends after 1"),
            (format!("\"back\":5,\"type\":\"named\",{time},\"name\":\"x\""), "do not fit"),
            (format!("\"colour\":1,\"type\":\"named\",{time},\"name\":\"x\""), "written by another version"),
            (format!("\"more\":01,\"type\":\"named\",{time},\"name\":\"x\""), "\"more\" is not a count"),
        ] {
            let (line, why) = opened(&sim, [log.clone(), forged(&log, &fields)].concat()).await.unwrap_err();
            assert!(line == 10 && why.contains(says), "{line}: {why}");
            assert_eq!(why.contains("torn end"), says == "ends after 1", "{why}");
        }
    });
}

#[test]
fn a_log_in_the_wrong_place_is_refused() {
    simulated(async {
        let sim = Sim::new(1);
        let (log, _) = session(&sim, "a").await;
        session(&sim, "b").await;
        sim.put(&file("b", "0.jsonl"), log);
        let error = catalog(&sim).open(&id("b")).await.unwrap_err();
        assert!(error.to_string().contains("the log of session a in the directory of b"), "{error}");
    });
}

#[test]
fn a_changed_baseline_is_refused() {
    simulated(async {
        let sim = Sim::new(1);
        session(&sim, "a").await;
        let path = file("a", "0.baseline.json");
        let json = sim.read(&path).unwrap();
        for at in 0..json.len() {
            let mut damaged = json.clone();
            damaged[at] ^= 1;
            sim.put(&path, damaged);
            let error = catalog(&sim).open(&id("a")).await.unwrap_err();
            assert!(matches!(&error, SessionError::Baseline(_)), "byte {at}: {error}");
            assert!(error.to_string().contains("0.baseline.json"), "{error}");
        }
        for longer in ["xyz", "\n", "{}"] {
            sim.put(&path, [&json[..], longer.as_bytes()].concat());
            assert!(Baseline::load_from(&sim, &path).await.is_err(), "{longer:?} behind it");
        }
        sim.put(&path, Vec::new());
        assert!(matches!(catalog(&sim).open(&id("a")).await, Err(SessionError::Baseline(_))));
        sim.put(&path, json);
        catalog(&sim).open(&id("a")).await.unwrap();
    });
}

#[test]
fn quarantine_cuts_a_tail_at_open_and_tells() {
    simulated(async {
        let sim = Sim::new(1);
        let (log, records) = session(&sim, "a").await;
        let options = OpenOptions { torn_tail: TornTail::Quarantine, ..OpenOptions::default() };
        let catalog = Catalog::on(sim.clone(), "/home".into(), options);
        assert!(catalog.open(&id("a")).await.unwrap().1.is_none());
        sim.put(&file("a", "0.jsonl"), [&log[..], b"{\"prev\""].concat());
        let (session, cut) = catalog.open(&id("a")).await.unwrap();
        let cut = cut.unwrap();
        assert_eq!((cut.line, cut.bytes, session.records()), (10, 7, &records[..]));
        assert_eq!(sim.read(&cut.saved).unwrap(), b"{\"prev\"");
        drop(session);
        // damage in the middle is refused all the same
        let mut damaged = log.clone();
        damaged[100] ^= 1;
        sim.put(&file("a", "0.jsonl"), damaged.clone());
        assert!(matches!(catalog.open(&id("a")).await, Err(SessionError::Torn { line: 1, .. })));
        assert_eq!(sim.read(&file("a", "0.jsonl")).unwrap(), damaged);
    });
}

#[test]
fn a_damaged_session_hides_no_other() {
    simulated(async {
        let sim = Sim::new(1);
        for name in ["a", "b", "c"] {
            session(&sim, name).await;
        }
        let mut log = sim.read(&file("b", "0.jsonl")).unwrap();
        log.truncate(log.len() - 7);
        sim.put(&file("b", "0.jsonl"), log);
        let list = catalog(&sim).list().await.unwrap();
        assert_eq!(list.len(), 3);
        let damaged = list.iter().find(|info| info.id == id("b")).unwrap();
        assert_eq!(damaged.state, SessionState::Damaged);
        let reason = damaged.reason.as_deref().unwrap();
        assert!(reason.starts_with("/home/sessions/b/0.jsonl:9: "), "{reason}");
        assert!(reason.ends_with("; see docs/runbook.md#session-log-damaged"), "{reason}");
        // list, show and open say the same
        let opened = catalog(&sim).open(&id("b")).await.unwrap_err().to_string();
        let shown = catalog(&sim).records(&id("b"), 0, None, 1 << 20).await.unwrap_err().to_string();
        assert_eq!((reason, reason), (opened.as_str(), shown.as_str()));
        assert!(list.iter().filter(|info| info.state == SessionState::Ok).count() == 2);
    });
}

#[test]
fn recover_copies_what_is_good() {
    simulated(async {
        let sim = Sim::new(1);
        let (log, records) = session(&sim, "a").await;
        let mut damaged = log.clone();
        damaged[lines(&log)[5] + 100] ^= 1;
        sim.put(&file("a", "0.jsonl"), damaged.clone());
        let done = catalog(&sim).recover(&id("a"), Some(id("b"))).await.unwrap().unwrap();
        assert_eq!((done.records, done.last), (5, (Epoch(0), 5)));
        assert_eq!(sim.read(&file("a", "0.jsonl")).unwrap(), damaged);
        let (new, _) = catalog(&sim).open(&id("b")).await.unwrap();
        assert_eq!(new.records()[1..], records[1..5]);
        let LogRecord::SessionStart(start) = &new.records()[0] else { panic!() };
        let origin = start.origin.as_ref().unwrap();
        assert_eq!((&origin.session, origin.epoch, origin.line), (&id("a"), Epoch(0), 5));
        assert_eq!(start.session, id("b"));
        assert!(catalog(&sim).recover(&id("b"), None).await.unwrap().is_none());
        let again = catalog(&sim).recover(&id("a"), Some(id("b"))).await;
        assert!(matches!(again, Err(SessionError::Exists(_))));
    });
}

#[test]
fn damage_over_several_appends_is_no_torn_end() {
    simulated(async {
        let sim = Sim::new(1);
        let (log, _) = session(&sim, "a").await;
        let starts = lines(&log);
        // an editor's line ends, from each line on: only the last append alone can be a torn one
        for first in 0..starts.len() - 1 {
            let mut damaged = log[..starts[first]].to_vec();
            for line in log[starts[first]..].split_inclusive(|b| *b == b'\n') {
                damaged.extend_from_slice(&line[..line.len() - 1]);
                damaged.extend_from_slice(b"\r\n");
            }
            let (line, why) = opened(&sim, damaged).await.expect_err("damage was not found");
            assert_eq!(line, first as u64 + 1);
            assert_eq!(why.contains("torn end"), first >= 6, "line {line}: {why}");
        }
    });
}
