//! One session from its first turn to its two thousandth: whether anything grows with it.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use crate::measure::median;
use crate::place::Place;
use crate::report::Row;
use crate::stream::{first_text, one_by_one, straight};

const TURNS: usize = 2000;
/// Turns that one point of the plot stands for.
const POINT: usize = 20;
/// Tokens of an answer whose cost is counted.
const TOKENS: usize = 30;
/// A board's context: the session goes on in new epochs when it is full.
const CONTEXT: u64 = 32_768;

/// What is plotted: its name, its unit, and a number a point.
struct Series {
    name: &'static str,
    unit: &'static str,
    /// Whether it is to stay as it is.
    goal: bool,
    points: Vec<f64>,
}

impl Series {
    fn new(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, goal: true, points: Vec::new() }
    }

    /// One that may grow with the context, and is only shown.
    fn shown(self) -> Self {
        Self { goal: false, ..self }
    }

    /// The medians of the first and the last tenth.
    fn ends(&self) -> (f64, f64) {
        let tenth = self.points.len() / 10;
        let last = self.points.len() - tenth;
        (median(self.points[..tenth].to_vec()), median(self.points[last..].to_vec()))
    }
}

/// Has the conversation, and plots it to `plot`.
pub fn rows(plot: &Path) -> Vec<Row> {
    let place = Place::new("");
    place.server.set(|behaviour| behaviour.n_ctx = CONTEXT);
    let (daemon, _) = place.start();
    let mut talk = place.talk();
    let id = talk.create();
    let mut all = [
        Series::new("durable append of the message", "ms"),
        Series::new("first token, more than the same request straight to the server", "ms"),
        Series::new("processor time a streamed token", "µs"),
        Series::new("processor time of a turn with an answer of two tokens", "ms").shown(),
    ];
    for _ in 0..TURNS / POINT {
        let mut point = [const { Vec::new() }; 2];
        let (mut long, mut short) = (Vec::new(), Vec::new());
        for turn in 0..POINT {
            if turn % 2 == 0 {
                place.server.push(one_by_one(TOKENS));
                let before = daemon.cpu();
                let began = Instant::now();
                talk.send(&id, "Tell me more");
                point[0].push(began.elapsed().as_secs_f64() * 1e3);
                talk.until_end(&id);
                long.push((daemon.cpu() - before).as_secs_f64());
            } else {
                let before = daemon.cpu();
                let ours = first_text(&mut talk, &id);
                short.push((daemon.cpu() - before).as_secs_f64());
                point[1].push((ours.as_secs_f64() - straight(&place).as_secs_f64()) * 1e3);
            }
            place.server.clear();
        }
        let (long, short) = (median(long), median(short));
        // what is the turn's, and not its tokens', is in both
        let each = (long - short) * 1e6 / (TOKENS - 2) as f64;
        let numbers = point.map(median).into_iter().chain([each, short * 1e3]);
        all.iter_mut().zip(numbers).for_each(|(series, number)| series.points.push(number));
    }
    let info = talk.info(&id);
    daemon.end();
    assert!(info.turns >= TURNS as u64, "{info:?}");
    std::fs::write(plot, svg(&all)).expect("write the plot");
    // a fifth of a millisecond, or of the whole, is what one run differs from the next by
    let rows = all.iter().map(|series| {
        let ((first, last), unit) = (series.ends(), series.unit);
        let flat = last <= first * 1.2 + if unit == "ms" { 0.2 } else { 5.0 };
        let row = Row::new(
            format!("{}, the last tenth of {TURNS} turns", series.name),
            format!("{last:.2} {unit}"),
        );
        let row = row.beside(format!("the first tenth: {first:.2} {unit}"), format!("{:.2}", last / first));
        if series.goal { row.goal("flat", flat) } else { row }
    });
    rows.collect()
}

const WIDTH: f64 = 720.0;
const PANEL: f64 = 150.0;
const LEFT: f64 = 50.0;

fn svg(all: &[Series]) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        PANEL * all.len() as f64
    );
    for (n, series) in all.iter().enumerate() {
        panel(&mut svg, PANEL * n as f64, series);
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, top: f64, series: &Series) {
    let (upper, lower, right) = (top + 24.0, top + PANEL - 22.0, WIDTH - 10.0);
    let most = series.points.iter().copied().fold(0.0, f64::max).max(1e-9) * 1.1;
    let across = (right - LEFT) / (series.points.len() - 1) as f64;
    let mut line = String::new();
    for (n, value) in series.points.iter().enumerate() {
        let (x, y) = (LEFT + across * n as f64, lower - (value.max(0.0) / most) * (lower - upper));
        write!(line, "{x:.1},{y:.1} ").expect("write to a string");
    }
    let text = |x: f64, y: f64, anchor: &str, what: &str| {
        format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{what}</text>\n")
    };
    svg.push_str(&text(LEFT, top + 16.0, "start", &format!("{}, {}", series.name, series.unit)));
    svg.push_str(&text(LEFT - 6.0, upper + 8.0, "end", &format!("{most:.1}")));
    svg.push_str(&text(LEFT - 6.0, lower, "end", "0"));
    svg.push_str(&text(LEFT, lower + 14.0, "middle", "1"));
    svg.push_str(&text(right - 20.0, lower + 14.0, "middle", &format!("turn {TURNS}")));
    writeln!(
        svg,
        "<path d=\"M{LEFT},{upper} V{lower} H{right}\" fill=\"none\" stroke=\"#888\"/>\n\
         <polyline points=\"{}\" fill=\"none\" stroke=\"#06c\" stroke-width=\"1.5\"/>",
        line.trim_end()
    )
    .expect("write to a string");
}
