//! One session from its first turn to its two thousandth: whether anything grows with it. Beside it, turn by turn, a
//! session that begins anew every few turns, on a daemon of its own: what slows both is the machine.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use boxmaker::proto::{Request, SessionId};

use crate::measure::{in_turns, median};
use crate::place::{Daemon, Place};
use crate::report::Row;
use crate::stream::{first_text, one_by_one, straight};
use crate::talk::Talk;

const TURNS: usize = 2000;
/// Turns that one point of the plot stands for.
const POINT: usize = 20;
/// Tokens of an answer whose cost is counted.
const TOKENS: usize = 30;
/// A board's context: the session goes on in new epochs when it is full.
const CONTEXT: u64 = 32_768;

/// What is plotted: its name, its unit, and a number a point, of the session and of one that has just begun.
struct Series {
    name: &'static str,
    unit: &'static str,
    /// Whether it is to stay as it is.
    goal: bool,
    points: Vec<[f64; 2]>,
}

impl Series {
    fn new(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, goal: true, points: Vec::new() }
    }

    /// One that may grow with the context, and is only shown.
    fn shown(self) -> Self {
        Self { goal: false, ..self }
    }

    fn of(&self, which: usize) -> impl Iterator<Item = f64> {
        self.points.iter().map(move |point| point[which])
    }

    /// The medians of the last tenth, of the session and of new ones at the same time.
    fn end(&self) -> [f64; 2] {
        let tenth = self.points.len() / 10;
        [0, 1].map(|which| median(self.of(which).skip(self.points.len() - tenth).collect()))
    }

    fn row(&self) -> Row {
        let ([long, young], unit) = (self.end(), self.unit);
        // a fifth of a millisecond, or of the whole, is what one run differs from the next by
        let flat = long <= young * 1.2 + if unit == "ms" { 0.2 } else { 5.0 };
        let what = format!("{}, the last tenth of {TURNS} turns", self.name);
        let row = Row::new(what, format!("{long:.2} {unit}")).beside(
            format!("new sessions, at the same time: {young:.2} {unit}"),
            format!("{:.2}", long / young),
        );
        if self.goal { row.goal("flat", flat) } else { row }
    }
}

/// A daemon, its model server and a session.
struct Side {
    place: Place,
    daemon: Daemon,
    talk: Talk,
    id: SessionId,
}

impl Side {
    fn new() -> Self {
        let place = Place::new("");
        place.server.set(|behaviour| behaviour.n_ctx = CONTEXT);
        let (daemon, _) = place.start();
        let mut talk = place.talk();
        let id = talk.create();
        Self { place, daemon, talk, id }
    }

    fn begin_anew(&mut self) {
        let old = std::mem::replace(&mut self.id, self.talk.create());
        self.talk.ask(Request::Detach { session: old }).expect("detach");
    }

    /// A turn with a long answer: how long its message took to be durable, and the turn's processor time.
    fn long(&mut self) -> [f64; 2] {
        self.place.server.push(one_by_one(TOKENS));
        let (cpu, began) = (self.daemon.cpu(), Instant::now());
        self.talk.send(&self.id, "Tell me more");
        let durable = began.elapsed();
        self.talk.until_end(&self.id);
        let used = self.daemon.cpu() - cpu;
        self.place.server.clear();
        [durable.as_secs_f64(), used.as_secs_f64()]
    }

    /// A turn with a short answer: how much later its first token came than that of the same request straight to the server,
    /// and the turn's processor time.
    fn short(&mut self) -> [f64; 2] {
        let cpu = self.daemon.cpu();
        let ours = first_text(&mut self.talk, &self.id);
        let used = self.daemon.cpu() - cpu;
        let more = ours.as_secs_f64() - straight(&self.place).as_secs_f64();
        self.place.server.clear();
        [more, used.as_secs_f64()]
    }
}

/// A point of each series, of both sides: their turns alternate.
fn point(sides: &mut [Side; 2]) -> [[f64; 2]; 4] {
    let mut measured = [const { [const { Vec::new() }; 4] }; 2];
    for turn in 0..POINT {
        for which in in_turns(sides.len(), turn / 2) {
            let [durable, more, long, short] = &mut measured[which];
            let (times, processor, [time, used]) = match turn % 2 {
                0 => (durable, long, sides[which].long()),
                _ => (more, short, sides[which].short()),
            };
            times.push(time);
            processor.push(used);
        }
    }
    let sides = measured.map(|side| {
        let [durable, more, long, short] = side.map(median);
        // what is the turn's, and not its tokens', is in both
        [durable * 1e3, more * 1e3, (long - short) * 1e6 / (TOKENS - 2) as f64, short * 1e3]
    });
    [0, 1, 2, 3].map(|series| sides.map(|side| side[series]))
}

/// Has the conversation, and plots it to `plot`.
pub fn rows(plot: &Path) -> Vec<Row> {
    let mut sides = [Side::new(), Side::new()];
    let mut all = [
        Series::new("durable append of the message", "ms"),
        Series::new("first token, more than the same request straight to the server", "ms"),
        Series::new("processor time a streamed token", "µs"),
        Series::new("processor time of a turn with an answer of two tokens", "ms").shown(),
    ];
    for _ in 0..TURNS / POINT {
        all.iter_mut().zip(point(&mut sides)).for_each(|(series, point)| series.points.push(point));
        sides[1].begin_anew();
    }
    let [Side { daemon, mut talk, id, .. }, young] = sides;
    let info = talk.info(&id);
    daemon.end();
    young.daemon.end();
    assert!(info.turns >= TURNS as u64, "{info:?}");
    std::fs::write(plot, svg(&all)).expect("write the plot");
    all.iter().map(Series::row).collect()
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
    let most = series.points.iter().flatten().copied().fold(0.0, f64::max).max(1e-9) * 1.1;
    let across = (right - LEFT) / (series.points.len() - 1) as f64;
    let line = |which| {
        let mut line = String::new();
        for (n, value) in series.of(which).enumerate() {
            let (x, y) = (LEFT + across * n as f64, lower - (value.max(0.0) / most) * (lower - upper));
            write!(line, "{x:.1},{y:.1} ").expect("write to a string");
        }
        line
    };
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
         <polyline points=\"{}\" fill=\"none\" stroke=\"#bbb\" stroke-width=\"1.5\"/>\n\
         <polyline points=\"{}\" fill=\"none\" stroke=\"#06c\" stroke-width=\"1.5\"/>",
        line(1).trim_end(),
        line(0).trim_end()
    )
    .expect("write to a string");
}
