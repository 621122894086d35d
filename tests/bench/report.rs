//! What was measured, as a table in the terminal and as the page `docs/performance.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// A line of a table.
#[derive(Debug, Clone)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// What it takes.
    pub ours: String,
    /// What the reference takes in the same run.
    pub reference: String,
    /// The one as a multiple of the other.
    pub ratio: String,
    /// The goal, and whether it is met; absent where the line only shows something.
    pub goal: Option<(String, bool)>,
}

impl Row {
    /// A line without a reference, a ratio and a goal yet.
    pub fn new(what: impl Into<String>, ours: impl Into<String>) -> Self {
        let (reference, ratio) = ("—".to_owned(), "—".to_owned());
        Self { what: what.into(), ours: ours.into(), reference, ratio, goal: None }
    }

    /// With its reference.
    pub fn beside(mut self, reference: impl Into<String>, ratio: impl Into<String>) -> Self {
        (self.reference, self.ratio) = (reference.into(), ratio.into());
        self
    }

    /// With its goal.
    pub fn goal(mut self, goal: impl Into<String>, met: bool) -> Self {
        self.goal = Some((goal.into(), met));
        self
    }

    fn cells(&self) -> [String; 6] {
        let (goal, met) = match &self.goal {
            None => ("—".to_owned(), "—"),
            Some((goal, true)) => (goal.clone(), "met"),
            Some((goal, false)) => (goal.clone(), "**missed**"),
        };
        let Self { what, ours, reference, ratio, .. } = self.clone();
        [what, ours, reference, ratio, goal, met.to_owned()]
    }
}

/// The tables, by the names that the page knows them by.
#[derive(Debug, Default)]
pub struct Report {
    tables: BTreeMap<&'static str, Vec<Row>>,
    texts: BTreeMap<&'static str, String>,
}

impl Report {
    /// Adds lines to a table, and prints them.
    pub fn add(&mut self, table: &'static str, rows: Vec<Row>) {
        for row in &rows {
            let [what, ours, reference, ratio, goal, met] = row.cells();
            println!("{what}: {ours}; reference {reference}; ratio {ratio}; goal {goal}: {met}");
        }
        self.tables.entry(table).or_default().extend(rows);
    }

    /// Sets a text that the page has a place for.
    pub fn text(&mut self, name: &'static str, text: String) {
        println!("{text}");
        self.texts.insert(name, text);
    }

    /// How many goals were met, and how many there are.
    pub fn goals(&self) -> (usize, usize) {
        let goals = self.tables.values().flatten().filter_map(|row| row.goal.as_ref());
        goals.fold((0, 0), |(met, all), goal| (met + usize::from(goal.1), all + 1))
    }

    /// Fills the template's places, `{{name}}`, and writes the page.
    pub fn write(&self, template: &Path, page: &Path) {
        let mut text = fs::read_to_string(template).expect("read the page's template");
        let tables = self.tables.iter().map(|(name, rows)| (name, table(rows)));
        let texts = self.texts.iter().map(|(name, told)| (name, told.clone()));
        for (name, filling) in tables.chain(texts) {
            text = text.replace(&format!("{{{{{name}}}}}"), &filling);
        }
        assert!(!text.contains("{{"), "nothing was measured for a place of the page: {text}");
        fs::write(page, text).expect("write the page");
    }
}

fn table(rows: &[Row]) -> String {
    let mut text =
        "| what | boxmaker | reference, same run | ratio | goal | |\n|---|---|---|---|---|---|".to_owned();
    for row in rows {
        write!(text, "\n| {} |", row.cells().join(" | ")).expect("write to a string");
    }
    text
}
