//! Tables that fit the terminal.

use super::text;

/// How a column behaves.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// What stands over it.
    pub title: &'static str,
    /// Numbers stand at the right.
    pub right: bool,
    /// What it can be cut to; `None`: it is never cut.
    pub least: Option<usize>,
    /// What it is cut to while other columns can still be left out.
    pub rather: Option<usize>,
    /// Columns of a higher number are left out first when the terminal is too narrow; 0 never.
    pub rank: u8,
}

impl Column {
    /// A column of text.
    #[must_use]
    pub const fn left(title: &'static str, rank: u8) -> Self {
        Self { title, right: false, least: None, rather: None, rank }
    }

    /// A column of numbers.
    #[must_use]
    pub const fn right(title: &'static str, rank: u8) -> Self {
        Self { title, right: true, least: None, rather: None, rank }
    }

    /// It may be cut, but not below so many columns.
    #[must_use]
    pub const fn at_least(mut self, least: usize) -> Self {
        self.least = Some(least);
        self
    }

    /// Other columns are left out before it is cut below so many columns.
    #[must_use]
    pub const fn rather(mut self, columns: usize) -> Self {
        self.rather = Some(columns);
        self
    }
}

const GAP: usize = 2;

/// The table's lines, title first, none wider than `width` as far as that can be. Cells are made safe.
#[must_use]
pub fn layout(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> Vec<String> {
    let mut cells: Vec<Vec<String>> = vec![columns.iter().map(|c| c.title.to_owned()).collect()];
    cells.extend(rows.iter().map(|row| row.iter().map(|cell| text::line(cell)).collect()));
    let natural = |index: usize| {
        let widths = cells.iter().filter_map(|row| row.get(index)).map(|cell| text::width(cell));
        widths.max().unwrap_or(0)
    };
    let mut kept: Vec<(usize, Column, usize)> =
        columns.iter().enumerate().map(|(i, column)| (i, *column, natural(i))).collect();
    if let Some(width) = width {
        fit(&mut kept, width);
    }
    cells.iter().map(|row| format_row(row, &kept)).collect()
}

/// Cuts and leaves out columns until the rest fits.
fn fit(kept: &mut Vec<(usize, Column, usize)>, width: usize) {
    loop {
        let gaps = kept.len().saturating_sub(1).saturating_mul(GAP);
        let total = kept.iter().map(|(_, _, w)| *w).fold(gaps, usize::saturating_add);
        let mut over = total.saturating_sub(width);
        if over == 0 {
            return;
        }
        let last = kept.iter().map(|(_, c, _)| c.rank).max().unwrap_or(0);
        let spare = |column: &Column, w: usize| {
            let least = if last > 0 { column.rather.or(column.least) } else { column.least };
            least.map_or(0, |least| w.saturating_sub(least))
        };
        let room = kept.iter().map(|(_, c, w)| spare(c, *w)).fold(0, usize::saturating_add);
        if room < over && last > 0 {
            if let Some(at) = kept.iter().rposition(|(_, c, _)| c.rank == last) {
                kept.remove(at);
            }
            continue;
        }
        for (_, column, w) in kept.iter_mut() {
            let less = spare(column, *w).min(over);
            *w = w.saturating_sub(less);
            over = over.saturating_sub(less);
        }
        return;
    }
}

fn format_row(row: &[String], kept: &[(usize, Column, usize)]) -> String {
    let mut line = String::new();
    for (place, (index, column, width)) in kept.iter().enumerate() {
        if place > 0 {
            line.push_str("  ");
        }
        let cell = text::cut(row.get(*index).map_or("", String::as_str), *width);
        let fill = " ".repeat(width.saturating_sub(text::width(&cell)));
        if column.right {
            line.push_str(&fill);
            line.push_str(&cell);
        } else {
            line.push_str(&cell);
            line.push_str(&fill);
        }
    }
    line.truncate(line.trim_end().len());
    line
}
