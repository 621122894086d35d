//! Times, and what two series of them come to.

use std::time::{Duration, Instant};

/// A series of times.
#[derive(Debug, Clone, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Adds one.
    pub fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Runs `work`, and adds how long it took.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        self.push(began.elapsed());
        result
    }

    fn at(&self, hundredths: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted[(sorted.len() * hundredths / 100).min(sorted.len() - 1)]
    }

    /// Half of them are shorter.
    pub fn median(&self) -> Duration {
        self.at(50)
    }

    /// One in a hundred is longer.
    pub fn p99(&self) -> Duration {
        self.at(99)
    }

    /// The median, and the 99th percentile where there are enough of them for one.
    pub fn shown(&self) -> String {
        match self.0.len() {
            0..100 => shown(self.median()),
            _ => format!("{} (p99 {})", shown(self.median()), shown(self.p99())),
        }
    }
}

/// A time with three digits at most.
pub fn shown(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        m if m < 100.0 => format!("{m:.1} µs"),
        m if m < 1000.0 => format!("{m:.0} µs"),
        m if m < 10_000.0 => format!("{:.2} ms", m / 1e3),
        m if m < 100_000.0 => format!("{:.1} ms", m / 1e3),
        m if m < 1_000_000.0 => format!("{:.0} ms", m / 1e3),
        m => format!("{:.2} s", m / 1e6),
    }
}

/// What something takes, beside its reference.
#[derive(Debug, Clone, Default)]
pub struct Pair {
    /// Ours.
    pub ours: Times,
    /// The reference's.
    pub reference: Times,
    /// Ours as a multiple of the reference, a round each.
    ratios: Vec<f64>,
}

impl Pair {
    /// Takes a round: both do the same work, one right after the other, so that whatever else the machine does
    /// slows both.
    pub fn round(&mut self, ours: Duration, reference: Duration) {
        self.ratios.push(ours.as_secs_f64() / reference.as_secs_f64());
    }

    /// Takes a round of which each side is one time.
    pub fn push(&mut self, ours: Duration, reference: Duration) {
        self.ours.push(ours);
        self.reference.push(reference);
        self.round(ours, reference);
    }

    /// Takes a round of which each side is one time, and begins with the one whose turn it is.
    pub fn measure(
        &mut self,
        round: usize,
        ours: impl FnOnce() -> Duration,
        reference: impl FnOnce() -> Duration,
    ) {
        let (ours, reference) = if round.is_multiple_of(2) {
            let ours = ours();
            (ours, reference())
        } else {
            let reference = reference();
            (ours(), reference)
        };
        self.push(ours, reference);
    }

    /// The median of the rounds' ratios.
    pub fn ratio(&self) -> f64 {
        median(self.ratios.clone())
    }

    /// The 99th percentile of ours as a multiple of the reference's.
    pub fn p99_ratio(&self) -> f64 {
        self.ours.p99().as_secs_f64() / self.reference.p99().as_secs_f64()
    }
}

/// Half of the numbers are smaller.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// The order in which so many sides do their part of a round: each begins one in its turn.
pub fn in_turns(sides: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..sides).map(move |turn| (turn + round) % sides)
}
