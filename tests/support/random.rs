//! Random runs that can be repeated, and numbers that make them longer.

#![allow(dead_code, reason = "each test crate uses its own part of this")]

/// A number from the environment, or `default`.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{name}={text:?}: {e}")))
}

/// A seed that is printed, so that `BOXMAKER_SEED` can repeat the run.
pub fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let seed = number("BOXMAKER_SEED", u64::from(now.subsec_nanos()));
    println!("BOXMAKER_SEED={seed}");
    seed
}

/// A small generator of pseudo-random numbers (xorshift64*), so that a seed gives the same run for ever.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next()).expect("64 bits") % n
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}
