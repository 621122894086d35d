//! `bxctl usage` as bars: one a turn, no colour needed.

use super::lists::row_name;
use super::text;
use crate::proto::TurnUsage;

/// Columns where the terminal does not tell.
pub const DEFAULT_WIDTH: usize = 80;
/// The newest turns that are drawn.
const MOST_BARS: usize = 40;

const CACHED: char = '░';
const EVALUATED: char = '█';
const GENERATED: char = '▒';
const AGAIN: char = '!';

/// The bars of the newest turns, and what their characters mean.
#[must_use]
pub fn bars(turns: &[TurnUsage], width: usize) -> Vec<String> {
    let skipped = turns.len().saturating_sub(MOST_BARS);
    let shown = turns.get(skipped..).unwrap_or_default();
    let digits = shown.iter().map(|t| row_name(t).len()).max().unwrap_or(1);
    let room = width.saturating_sub(digits.saturating_add(1)).max(8);
    let most = shown.iter().map(total).max().unwrap_or(0).max(1);
    let legend =
        format!("{CACHED} from cache  {EVALUATED} evaluated  {AGAIN} evaluated again  {GENERATED} generated");
    let mut lines = text::wrap(&legend, width);
    if skipped > 0 {
        lines.push(format!("(the newest {MOST_BARS} turns)"));
    }
    for turn in shown {
        let again = turn.lost_n.min(turn.prompt_n);
        let parts = [
            (CACHED, turn.cache_n),
            (EVALUATED, turn.prompt_n.saturating_sub(again)),
            (AGAIN, again),
            (GENERATED, turn.predicted_n),
        ];
        lines.push(format!("{:>digits$} {}", row_name(turn), bar(&parts, most, room)));
    }
    lines
}

fn total(turn: &TurnUsage) -> u64 {
    turn.cache_n.saturating_add(turn.prompt_n).saturating_add(turn.predicted_n)
}

/// One bar. What is there at all gets a column at least; where that is too much, the longest part gives.
fn bar(parts: &[(char, u64)], most: u64, room: usize) -> String {
    let scaled = |count: u64| {
        let columns = u128::from(count).saturating_mul(u128::try_from(room).unwrap_or(u128::MAX));
        usize::try_from(columns / u128::from(most.max(1))).unwrap_or(room).max(1)
    };
    let mut lengths: Vec<(char, usize)> =
        parts.iter().filter(|(_, count)| *count > 0).map(|(sign, count)| (*sign, scaled(*count))).collect();
    let total = lengths.iter().map(|(_, length)| *length).fold(0, usize::saturating_add);
    if let Some((_, longest)) = lengths.iter_mut().max_by_key(|(_, length)| *length) {
        *longest = longest.saturating_sub(total.saturating_sub(room));
    }
    lengths.iter().flat_map(|(sign, length)| std::iter::repeat_n(*sign, *length)).collect()
}
