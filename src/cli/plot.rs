//! `bxctl usage` as bars: one a turn, no colour needed.

use super::lists::row_name;
use super::text;
use crate::proto::TurnUsage;

/// The newest turns that are drawn.
const MOST_BARS: usize = 40;

/// What kinds of tokens a turn cost, in the order of [`parts`].
pub const KINDS: [&str; 4] = ["from cache", "evaluated", "evaluated again", "generated"];
const SIGNS: [char; 4] = ['░', '█', '!', '▒'];

/// How many tokens of each kind a turn cost.
#[must_use]
pub fn parts(turn: &TurnUsage) -> [u64; 4] {
    let again = turn.lost_n.min(turn.prompt_n);
    [turn.cache_n, turn.prompt_n.saturating_sub(again), again, turn.predicted_n]
}

/// The tokens of all kinds together.
#[must_use]
pub fn total(turn: &TurnUsage) -> u64 {
    parts(turn).into_iter().fold(0, u64::saturating_add)
}

/// The bars of the newest turns, and what their characters mean.
#[must_use]
pub fn bars(turns: &[TurnUsage], width: usize) -> Vec<String> {
    let skipped = turns.len().saturating_sub(MOST_BARS);
    let shown = turns.get(skipped..).unwrap_or_default();
    let digits = shown.iter().map(|t| row_name(t).len()).max().unwrap_or(1);
    let room = width.saturating_sub(digits.saturating_add(1)).max(8);
    let most = shown.iter().map(total).max().unwrap_or(0).max(1);
    let legend = SIGNS.iter().zip(KINDS).map(|(sign, kind)| format!("{sign} {kind}"));
    let scale = format!("(a whole row: {most} tokens)");
    let mut lines = text::parts(legend.chain(std::iter::once(scale)), "  ", width);
    if skipped > 0 {
        lines.push(format!("(the newest {MOST_BARS} turns)"));
    }
    for turn in shown {
        lines.push(format!("{:>digits$} {}", row_name(turn), bar(parts(turn), most, room)));
    }
    lines
}

/// One bar. What is there at all gets a column at least; where that is too much, the longest part gives.
fn bar(parts: [u64; 4], most: u64, room: usize) -> String {
    let scaled = |count: u64| {
        let columns = u128::from(count).saturating_mul(u128::try_from(room).unwrap_or(u128::MAX));
        usize::try_from(columns / u128::from(most.max(1))).unwrap_or(room).max(1)
    };
    let mut lengths: Vec<(char, usize)> =
        SIGNS.into_iter().zip(parts).filter(|(_, n)| *n > 0).map(|(sign, n)| (sign, scaled(n))).collect();
    let total = lengths.iter().map(|(_, length)| *length).fold(0, usize::saturating_add);
    if let Some((_, longest)) = lengths.iter_mut().max_by_key(|(_, length)| *length) {
        *longest = longest.saturating_sub(total.saturating_sub(room));
    }
    lengths.iter().flat_map(|(sign, length)| std::iter::repeat_n(*sign, *length)).collect()
}
