//! Feeds a target with mutations of a corpus, and watches for what it must never do: panic, hang, or take
//! memory beyond all measure.
//!
//! Where there is time, this is run long: `BOXMAKER_FUZZ_SECONDS=3600 cargo nextest run --test fuzz`. The
//! seed is fixed, so that each run goes over the same ground and a long one goes further; `BOXMAKER_SEED` sets
//! another. libFuzzer, which follows the branches of the code, needs a nightly compiler; a target here is a
//! function of some bytes, as it wants them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::future::Future;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::store_support::sim::{Rng, number};

/// Longest input, in bytes.
const LONGEST: usize = 64 << 10;
/// One input must be done with in this time, on a busy machine too.
const HANGS: Duration = Duration::from_secs(20);
/// One input may take so much memory on top of what was in use.
const MEMORY: usize = 96 << 20;

/// Counts what is allocated.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = IN_USE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What panicked since it was last asked for; tasks of tokio swallow their panics.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Runs `target` on the corpus of this name and on mutations of it.
pub async fn drive<F: Future>(name: &str, more: Vec<Vec<u8>>, mut target: impl FnMut(Vec<u8>) -> F) {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        if !text.contains("the toy breaks, as it should") {
            PANICS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(text);
        }
    }));
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name);
    let mut files: Vec<_> =
        fs::read_dir(&dir).expect("a corpus").map(|f| f.expect("a file").path()).collect();
    files.sort();
    let mut corpus: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).expect("read it")).collect();
    corpus.extend(more);
    let (seconds, seed) = (number("BOXMAKER_FUZZ_SECONDS", 3), number("BOXMAKER_SEED", 1));
    let (mut rng, begin, mut count, mut worst) = (Rng::new(seed), Instant::now(), 0usize, 0);
    while count < corpus.len() || begin.elapsed() < Duration::from_secs(seconds) {
        let input = match corpus.get(count) {
            Some(whole) => whole.clone(),
            None => mutated(&corpus, &mut rng),
        };
        count += 1;
        let before = IN_USE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let done = tokio::time::timeout(HANGS, target(input.clone())).await;
        let used = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        worst = worst.max(used);
        let panics = std::mem::take(&mut *PANICS.lock().expect("no panic in the hook"));
        let wrong = match (panics.is_empty(), done, used) {
            (false, ..) => panics.join("\n"),
            (_, Err(_), _) => format!("it hangs: not done after {HANGS:?}"),
            (.., used) if used > MEMORY => format!("it took {used} bytes of memory"),
            _ => continue,
        };
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}-{seed}-{count}"));
        fs::write(&kept, &input).expect("keep the input");
        panic!("input {count} of seed {seed}, kept as {}: {wrong}", kept.display());
    }
    println!(
        "{name}: {count} inputs from {} of the corpus, seed {seed}, at most {worst} bytes each",
        corpus.len()
    );
}

/// Some of what breaks parsers.
const WORDS: [&[u8]; 16] = [
    b"\n",
    b"\0",
    b"\"",
    b"{",
    b"[[[[[[[[[[[[[[[[",
    b"\\ud800",
    b"\xff\xfe",
    b"18446744073709551616",
    b"-1",
    b"1e999",
    b"null",
    b"}",
    b"\r\n\r\n",
    b"data: ",
    b"<|im_end|>",
    b"\xf0\x9f\xa6\x80",
];

fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = corpus[rng.below(corpus.len())].clone();
    for _ in 0..1 + rng.below(6) {
        let at = rng.below(input.len() + 1);
        let some = (1 + rng.below(40)).min(input.len() - at);
        match rng.below(9) {
            0 if at < input.len() => input[at] ^= 1 << rng.below(8),
            1 if at < input.len() => input[at] = u8::try_from(rng.below(256)).expect("a byte"),
            2 => drop(input.drain(at..at + some)),
            3 => {
                let copy = input[at..at + some].to_vec();
                let to = rng.below(input.len() + 1);
                input.splice(to..to, copy);
            }
            4 => input.truncate(at),
            5 => drop(input.splice(at..at, WORDS[rng.below(WORDS.len())].iter().copied())),
            6 => {
                let other = &corpus[rng.below(corpus.len())];
                let from = rng.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            7 => {
                // a digit becomes others
                if let Some(digit) = (at..input.len()).find(|i| input[*i].is_ascii_digit()) {
                    let digits = (rng.next() >> rng.below(47)).to_string();
                    input.splice(digit..=digit, digits.into_bytes());
                }
            }
            _ => {
                let word = WORDS[rng.below(WORDS.len())];
                let many = word.repeat(1 + rng.below(2000));
                input.splice(at..at, many);
            }
        }
        input.truncate(LONGEST);
    }
    input
}
