//! `bxctl usage` as bars: one a turn, no colour needed.

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
    let digits = shown.iter().map(|t| t.turn.to_string().len()).max().unwrap_or(1);
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
        lines.push(format!("{:>digits$} {}", turn.turn.to_string(), bar(&parts, most, room)));
    }
    lines
}

fn total(turn: &TurnUsage) -> u64 {
    turn.cache_n.saturating_add(turn.prompt_n).saturating_add(turn.predicted_n)
}

/// One bar. What is there at all gets a column at least, except where there is no room for it.
fn bar(parts: &[(char, u64)], most: u64, room: usize) -> String {
    let columns = u64::try_from(room).unwrap_or(u64::MAX);
    let mut out = String::new();
    for (sign, count) in parts.iter().filter(|(_, count)| *count > 0) {
        let scaled = u128::from(*count) * u128::from(columns) / u128::from(most.max(1));
        let scaled = usize::try_from(scaled).unwrap_or(room).max(1);
        out.extend(std::iter::repeat_n(*sign, scaled));
    }
    text::cut(&out, room)
}
