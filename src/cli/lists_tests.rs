use super::*;
use crate::proto::TurnId;

fn info(id: &str, name: Option<&str>, state: SessionState, reason: Option<&str>) -> SessionInfo {
    SessionInfo {
        id: id.parse().unwrap(),
        name: name.map(str::to_owned),
        title: None,
        state,
        started: Some("2026-01-30T08:00:00.000Z".parse().unwrap()),
        last: Some("2026-01-31T23:59:59.999Z".parse().unwrap()),
        messages: 12,
        turns: 6,
        context_n: 1873,
        epoch: crate::proto::Epoch(0),
        model: Some("SmolLM2-135M-Instruct.Q4_1".to_owned()),
        reason: reason.map(str::to_owned),
    }
}

fn turn(turn: u64, cache_n: u64, prompt_n: u64, predicted_n: u64, lost_n: u64) -> TurnUsage {
    TurnUsage {
        turn: TurnId(turn),
        epoch: None,
        cache_n,
        prompt_n,
        predicted_n,
        new_n: prompt_n - lost_n,
        lost_n,
        reasoning_tokens: 0,
        thinking_capped: false,
        completions: 1,
        seconds: 12.25,
        outcome: (turn != 3).then_some(TurnOutcome::Done),
    }
}

fn at(width: usize, lines: &[String]) -> String {
    for line in lines {
        assert!(text::width(line) <= width, "wider than {width}: {line:?}");
        assert!(line.chars().all(|c| !c.is_control()), "{line:?}");
    }
    lines.join("\n")
}

#[test]
fn the_list_of_sessions_fits() {
    let sessions = [
        info("k3v9x0a2b4c6", Some("shopping \x1b[31mlist\nfor the week"), SessionState::Running, None),
        info(
            "d00000000001",
            Some("日本語"),
            SessionState::Damaged,
            Some("/var/lib/boxmaker/sessions/d00000000001/0.jsonl:5: not a record (312 NUL bytes)"),
        ),
        info("z", None, SessionState::Ok, None),
    ];
    for width in [40, 80, 200] {
        insta::assert_snapshot!(
            format!("sessions_{width}"),
            at(width, &session_lines(&sessions, Some(width)))
        );
    }
}

#[test]
fn the_costs_of_turns_fit() {
    let turns =
        [turn(1, 0, 300, 40, 0), turn(2, 340, 25, 60, 0), turn(3, 0, 430, 55, 405), turn(4, 484, 1, 1, 0)];
    let session = info(
        "k3v9x0a2b4c6",
        Some("a long name, which is cut off where the terminal ends"),
        SessionState::Ok,
        None,
    );
    for width in [40, 80, 200] {
        insta::assert_snapshot!(
            format!("usage_{width}"),
            at(width, &usage_lines(&session, &turns, Some(width)))
        );
    }
    assert_eq!(usage_lines(&session, &[], None).len(), 1);
}

#[test]
fn the_status_fits() {
    let status = Status {
        daemon: "loopd 0.1.0".into(),
        pid: 4711,
        uptime_s: 93_784,
        home: "/var/lib/boxmaker".into(),
        slot: 0,
        url: "unix:/run/boxmaker/llama.sock".into(),
        server: ServerState::Loading,
        server_detail: Some("Loading model\x07".into()),
        model: None,
        n_ctx: Some(2048),
        slot_session: Some("k3v9x0a2b4c6".parse().unwrap()),
        running: None,
        waiting: 2,
        open_sessions: 3,
        clients: 1,
        oldest_sync_ms: 1500,
        lost_n: 812,
        last_loss: Some("session k3v9x0a2b4c6, turn 7: 812 tokens".into()),
    };
    for width in [40, 80, 200] {
        insta::assert_snapshot!(format!("status_{width}"), at(width, &status_lines(&status, Some(width))));
    }
}

#[test]
fn the_json_of_a_session_has_exactly_its_keys() {
    let info = info("z", None, SessionState::Ok, None);
    let value = serde_json::to_value(SessionRow::from(&info)).unwrap();
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut expected =
        ["id", "name", "title", "state", "started", "last", "messages", "turns", "context_n", "reason"];
    expected.sort_unstable();
    assert_eq!(keys, expected);
}
