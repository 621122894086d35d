//! Forks and searches with the real model: a fork costs the model nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::process::Command;

use support::rig::{Rig, ids, of_kind};
use support::skip;

#[test]
fn a_fork_goes_on_from_the_cache() {
    let Some(rig) = Rig::start("completion_tokens = 32") else { return };
    let (id, _) = rig.first_turn("My dog is called Karlchen. Say hello to him.");
    rig.turn(&id, "What do dogs eat?");
    rig.turn(&id, "And cats?");
    let ran = rig.ctl(&["fork", &id, "--turn", "2", "--name", "cats"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let fork = ran.out.trim().to_owned();
    // the ids are in the logs only: `show` leaves them out
    let sampled = |session: &str| -> Vec<_> {
        of_kind(&rig.log(session), "assistant_message").iter().map(|said| ids(&said["ids"])).collect()
    };
    let (old, new) = (sampled(&id), sampled(&fork));
    assert_eq!((old.len(), new.len()), (3, 2));
    assert!(old.iter().all(|ids| !ids.is_empty()), "{old:?}");
    assert_eq!(old[..2], new[..], "the fork has other tokens");
    rig.turn(&fork, "And horses?");

    let rows = rig.usage(&fork);
    assert_eq!(rows.len(), 3, "{rows:#?}");
    let (before, own) = (rig.usage(&id), &rows[2]);
    assert_eq!(own["lost_n"], 0, "{own:#}");
    // turn 3 of both has the same prompt before what is new in it, and the slot may hold some of that too
    assert!(own["cache_n"].as_u64() >= before[2]["cache_n"].as_u64(), "{own:#} {before:#?}");
    assert!(own["prompt_n"].as_u64() <= own["new_n"].as_u64().map(|n| n + 1), "{own:#}");

    // what was said is found in both, and by the name; the older session goes on as well
    let found = rig.ctl(&["search", "karlchen", "--json"]).json();
    let sessions: Vec<_> = found.as_array().unwrap().iter().map(|hit| hit["session"].clone()).collect();
    assert!(sessions.contains(&id.as_str().into()) && sessions.contains(&fork.as_str().into()), "{found:#}");
    let found = rig.ctl(&["search", "karlchen", "--session", "cats", "--json"]).json();
    assert_eq!(found[0]["session"], fork.as_str());
    assert_eq!(rig.ctl(&["search", "karlchen", "unheard-of"]).code, 1);
}

#[test]
fn the_page_is_drawn_by_a_browser() {
    let browser = "chromium-headless-shell";
    if Command::new(browser).arg("--version").output().is_err() {
        return skip("chromium-headless-shell is not installed");
    }
    let Some(rig) = Rig::start("completion_tokens = 32") else { return };
    let (id, _) = rig.first_turn("<b>bold</b> & <script>document.title='alive'</script>");
    rig.turn(&id, "And now?");
    let page = rig.dir().join("talk.html");
    let ran = rig.ctl(&["export", &id, "--html", "-o", page.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let address = format!("file://{}", page.display());
    let output = Command::new(browser)
        .args(["--no-sandbox", "--disable-gpu", "--dump-dom", &address])
        .output()
        .unwrap();
    let dom = String::from_utf8(output.stdout).unwrap();
    let user = "<div class=\"user\">&lt;b&gt;bold&lt;/b&gt; &amp; &lt;script&gt;document.title='alive'&lt;/script&gt;</div>";
    assert!(dom.contains(user), "{dom}");
    assert!(!dom.contains("<title>alive"), "{dom}");
    assert_eq!(dom.matches("<section id=\"turn-").count(), 2, "{dom}");
    assert!(dom.matches("<rect").count() >= 4, "{dom}");
}
