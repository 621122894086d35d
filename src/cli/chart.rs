//! Tokens per turn as a drawing: inline SVG, which needs no script.

use std::fmt::Write as _;

use super::lists::row_name;
use super::plot::{KINDS, parts, total};
use crate::proto::TurnUsage;

const WIDTH: u64 = 720;
const HEIGHT: u64 = 160;
/// The newest turns that are drawn.
const MOST_BARS: usize = 120;

/// The kinds of tokens in the style sheet, from the bottom up.
const CLASSES: [&str; 4] = ["cached", "new", "again", "generated"];

/// The figure with its legend; nothing where there is no turn.
#[must_use]
pub fn figure(turns: &[TurnUsage]) -> String {
    let shown = turns.get(turns.len().saturating_sub(MOST_BARS)..).unwrap_or_default();
    let Some(most) = shown.iter().map(total).max().filter(|most| *most > 0) else {
        return String::new();
    };
    let count = u64::try_from(shown.len()).unwrap_or(1).max(1);
    let step = (WIDTH / count).clamp(1, 48);
    let bar = step.saturating_sub(step / 5).max(1);
    let mut out = String::from("<figure>\n");
    // writing to a String cannot fail
    let _ = writeln!(
        out,
        "<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" aria-label=\"Tokens per turn\">",
        step.saturating_mul(count),
        HEIGHT.saturating_add(20)
    );
    for (place, turn) in (0u64..).zip(shown) {
        let x = place.saturating_mul(step);
        let counts: Vec<String> =
            parts(turn).iter().zip(KINDS).map(|(count, kind)| format!("{count} {kind}")).collect();
        let _ = writeln!(out, "<g><title>turn {}: {}</title>", row_name(turn), counts.join(", "));
        let mut below = 0u64;
        for (class, part) in CLASSES.iter().zip(parts(turn)) {
            let (from, to) = (scaled(below, most), scaled(below.saturating_add(part), most));
            below = below.saturating_add(part);
            if part > 0 {
                // what is there at all can be seen
                let height = to.saturating_sub(from).max(1);
                let y = HEIGHT.saturating_sub(from.saturating_add(height));
                let _ = writeln!(
                    out,
                    "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{bar}\" height=\"{height}\"/>"
                );
            }
        }
        // as many numbers as can be read
        if place.is_multiple_of(24u64.div_ceil(step)) {
            let middle = x.saturating_add(bar / 2);
            let _ = writeln!(
                out,
                "<text x=\"{middle}\" y=\"{}\">{}</text>",
                HEIGHT.saturating_add(15),
                row_name(turn)
            );
        }
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n<figcaption>Tokens per turn: ");
    for (class, kind) in CLASSES.iter().zip(KINDS) {
        let _ = write!(out, "<span class=\"kind\"><span class=\"key {class}\"></span>{kind}</span> ");
    }
    let _ = writeln!(out, "· highest {most}</figcaption>\n</figure>");
    out
}

fn scaled(count: u64, most: u64) -> u64 {
    let scaled = u128::from(count).saturating_mul(u128::from(HEIGHT)) / u128::from(most.max(1));
    u64::try_from(scaled).unwrap_or(HEIGHT)
}
