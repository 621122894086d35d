//! A session's files, read from the first epoch to the newest.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::baseline::Baseline;
use super::error::{BaselineError, SessionError};
use super::read::Lines;
use super::scan::{Damage, DamageKind, Expected, Found, Mark, Scanned, scan, scan_from};
use super::storage::{Access, Entry, Kind, Storage};
use crate::proto::{Digest, Epoch, Line, LogRecord, Sequence, SessionId};

/// The baseline's file of an epoch.
pub(crate) fn baseline_path(dir: &Path, epoch: Epoch) -> PathBuf {
    dir.join(format!("{epoch}.baseline.json"))
}

/// The name under which it is written first.
pub(crate) fn baseline_tmp_path(dir: &Path, epoch: Epoch) -> PathBuf {
    dir.join(format!("{epoch}.baseline.json.tmp"))
}

/// The log's file of an epoch.
pub(crate) fn log_path(dir: &Path, epoch: Epoch) -> PathBuf {
    dir.join(format!("{epoch}.jsonl"))
}

/// The name under which it is written first, from epoch 1 on.
pub(crate) fn log_tmp_path(dir: &Path, epoch: Epoch) -> PathBuf {
    dir.join(format!("{epoch}.jsonl.tmp"))
}

/// How long, and how often, a writer in another process is waited for before what it does half is taken
/// for damage.
pub(crate) const WRITER_PAUSE: Duration = Duration::from_millis(25);
pub(crate) const WRITER_TRIES: u32 = 4;

/// What the walk tells as it goes.
pub(crate) enum Step<'a> {
    /// An epoch begins; its baseline was read, its log not yet.
    Epoch(Epoch, &'a Baseline),
    /// A record of a whole append.
    Record(Found),
}

/// Where a walk begins that does not begin at the first record.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    /// The epoch.
    pub epoch: Epoch,
    /// A place in its log that an earlier walk has reached.
    pub end: Mark,
}

/// A walk that came to its end, or was stopped.
pub(crate) struct Walked {
    /// The newest epoch, or the one in which it was stopped.
    pub epoch: Epoch,
    /// Its baseline.
    pub baseline: Baseline,
    /// Where its log ends, or the append with which it was stopped.
    pub end: Mark,
    /// Bytes of all earlier logs that were read.
    pub earlier_bytes: u64,
    /// What the beginning of an epoch that was cut off has left behind.
    pub remains: Vec<String>,
}

/// A walk that met something that is not whole.
pub(crate) struct Broken {
    /// What, for people.
    pub error: SessionError,
    /// If it is in a log: where.
    pub damage: Option<Box<BrokenLog>>,
}

/// Damage in a log.
pub(crate) struct BrokenLog {
    /// The epoch, and whether it is the newest.
    pub epoch: Epoch,
    /// The log.
    pub path: PathBuf,
    /// What is wrong; a torn end in an epoch that is not the newest counts as damage in the middle.
    pub damage: Damage,
    /// What is whole before it.
    pub good: Mark,
    /// The file's size.
    pub size: u64,
}

impl BrokenLog {
    /// Whether not even the session's first append is whole: nobody was told that it exists.
    pub(crate) fn is_only_begun(&self) -> bool {
        self.damage.kind == DamageKind::Tail && self.epoch == Epoch(0) && self.good.lines == 0
    }

    /// Whether it is a torn end that can be cut away.
    pub(crate) fn is_tail(&self) -> bool {
        self.damage.kind == DamageKind::Tail && !self.is_only_begun()
    }
}

impl From<SessionError> for Broken {
    fn from(error: SessionError) -> Self {
        Self { error, damage: None }
    }
}

/// The epochs of a session, by the names of their files.
pub(crate) struct Epochs {
    /// The newest that has a log.
    pub newest: Epoch,
    /// What the beginning of the next one has left behind when it was cut off.
    pub remains: Vec<String>,
}

/// The epochs that have a log, in order, as far as they follow one another.
///
/// # Errors
/// [`SessionError::NotFound`], [`SessionError::HalfCreated`] where there is no log at all, and damage
/// where one is missing.
pub(crate) async fn epochs<S: Storage>(storage: &S, dir: &Path, id: &SessionId) -> Result<Epochs, Broken> {
    let entries = storage.list(dir).await.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => SessionError::NotFound(id.clone()),
        _ => SessionError::Io(dir.to_owned(), e),
    })?;
    let number = |name: &str| {
        let digits = name.strip_suffix(".jsonl")?;
        let number = digits.parse::<u32>().ok()?;
        (number.to_string() == digits).then_some(number)
    };
    // what is no file is a log all the same, one that cannot be read
    let logs = entries.iter().filter(|e| e.kind != Kind::Dir);
    let mut numbers: Vec<u32> = logs.filter_map(|e| number(&e.name)).collect();
    numbers.sort_unstable();
    let Some(newest) = numbers.last().copied().map(Epoch) else {
        return Err(half_created(dir, id, "it has no log").into());
    };
    let missing = (0u32..).zip(&numbers).find(|(expected, found)| expected != *found);
    if let Some((missing, _)) = missing {
        let why = format!("missing, although epoch {newest} has a log; restore it from a backup");
        return Err(SessionError::Torn { path: log_path(dir, Epoch(missing)), line: 1, why }.into());
    }
    let next = newest.next();
    let names = [baseline_path(dir, next), baseline_tmp_path(dir, next), log_tmp_path(dir, next)];
    let left =
        |name: &&Entry| names.iter().any(|path| path.file_name().is_some_and(|n| n == name.name.as_str()));
    let mut remains: Vec<String> = entries.iter().filter(left).map(|entry| entry.name.clone()).collect();
    remains.sort_unstable();
    Ok(Epochs { newest, remains })
}

pub(crate) fn half_created(dir: &Path, id: &SessionId, what: &str) -> SessionError {
    let why = format!(
        "half-created: {what}; its creation was cut off before anyone was told of it; `loopd repair {id}` \
         moves it away"
    );
    SessionError::HalfCreated { path: dir.to_owned(), why }
}

/// As [`walk`], again from the start for as long as what ends it may be a writer in the middle of its work, as
/// `unfinished` says. `begin` makes what `visit` fills. The start is the first record, unless another one is given.
pub(crate) async fn walk_settled<S: Storage, T>(
    storage: &S,
    dir: &Path,
    id: &SessionId,
    start: Option<&Start>,
    unfinished: impl Fn(&Broken) -> bool,
    begin: impl Fn() -> T,
    mut visit: impl FnMut(&mut T, Step<'_>) -> ControlFlow<()>,
) -> (T, Result<Walked, Broken>) {
    let mut attempt = 1;
    loop {
        let mut so_far = begin();
        match walk_from(storage, dir, id, start, &mut |step| visit(&mut so_far, step)).await {
            Err(broken) if attempt < WRITER_TRIES && unfinished(&broken) => {
                attempt += 1;
                storage.pause(WRITER_PAUSE).await;
            }
            walked => return (so_far, walked),
        }
    }
}

/// Reads the whole session and gives its parts to `visit`, until that says to stop: then it is still given the rest of
/// the append that it has stopped in.
///
/// # Errors
/// The first thing that is not whole.
pub(crate) async fn walk<S: Storage>(
    storage: &S,
    dir: &Path,
    id: &SessionId,
    visit: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
) -> Result<Walked, Broken> {
    walk_from(storage, dir, id, None, visit).await
}

/// As [`walk`], from `start` on.
async fn walk_from<S: Storage>(
    storage: &S,
    dir: &Path,
    id: &SessionId,
    start: Option<&Start>,
    visit: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
) -> Result<Walked, Broken> {
    let Epochs { newest, remains } = epochs(storage, dir, id).await?;
    let mut epoch = start.map_or(Epoch(0), |start| start.epoch);
    let mut begin = start.map(|start| start.end.clone());
    let mut sequence = Sequence::default();
    let mut previous = None;
    let mut earlier_bytes = 0u64;
    loop {
        let baseline = match Baseline::load_from(storage, &baseline_path(dir, epoch)).await {
            Ok(baseline) => baseline,
            Err(e) => return Err(no_baseline(storage, dir, id, epoch, e).await),
        };
        let wanted = visit(Step::Epoch(epoch, &baseline)).is_continue();
        let mut stopped = !wanted;
        let path = log_path(dir, epoch);
        let file = storage.open(&path, Access::Read).await.map_err(SessionError::io(&path))?;
        let expected = Expected { session: id.clone(), epoch, baseline: baseline.hash(), previous, sequence };
        let mut found = |found| {
            let flow = if wanted { visit(Step::Record(found)) } else { ControlFlow::Break(()) };
            stopped |= flow.is_break();
            flow
        };
        let scanned = match begin.take() {
            Some(begin) => scan_from(&file, &expected, begin, &mut found).await,
            None => scan(&file, &expected, &mut found).await,
        };
        let scanned = scanned.map_err(SessionError::io(&path))?;
        let end = whole(scanned, dir, id, epoch, newest)?;
        if epoch == newest || stopped {
            return Ok(Walked { epoch, baseline, end, earlier_bytes, remains });
        }
        earlier_bytes = earlier_bytes.saturating_add(end.bytes);
        previous = Some(end.last);
        sequence = end.sequence.next_epoch();
        epoch = epoch.next();
    }
}

/// Turns a log's damage into an error with the way out.
fn whole(scanned: Scanned, dir: &Path, id: &SessionId, epoch: Epoch, newest: Epoch) -> Result<Mark, Broken> {
    let Scanned { good, damage, size } = scanned;
    let Some(mut damage) = damage else {
        return Ok(good);
    };
    let path = log_path(dir, epoch);
    // an epoch after the first has its name only when its first append is whole and synced
    let begun = epoch > Epoch(0) && good.lines == 0;
    if damage.kind == DamageKind::Tail && (epoch != newest || begun) {
        damage.kind = DamageKind::Middle { good_after: 0 };
    }
    let error = match damage.kind {
        DamageKind::Baseline { named } => {
            let path = baseline_path(dir, epoch);
            // the walk read the file a moment ago; its digest is the chain's beginning
            SessionError::Baseline(BaselineError::Digest { path, named, found: good.last })
        }
        DamageKind::Tail if good.lines == 0 && epoch == Epoch(0) => SessionError::Torn {
            path: path.clone(),
            line: damage.line,
            why: format!(
                "{}: the session's creation was cut off before anyone was told of it; `loopd repair {id}` \
                 moves it away",
                damage.why
            ),
        },
        DamageKind::Tail => SessionError::Torn {
            path: path.clone(),
            line: damage.line,
            why: format!(
                "{}: a torn end of {} bytes, of an append that was cut off and that nobody was told about; \
                 `loopd repair {id}` shows it and cuts it away",
                damage.why,
                size.saturating_sub(good.bytes)
            ),
        },
        DamageKind::Middle { good_after } => {
            let behind = match good_after {
                0 if epoch != newest => format!("epoch {} follows", epoch.next()),
                0 if begun => "it was whole when the epoch began".to_owned(),
                // otherwise it would be a tail
                0 => "the line itself is as it was written".to_owned(),
                1 => "1 good line follows".to_owned(),
                n => format!("{n} good lines follow"),
            };
            let why = format!(
                "{}; {behind}, so nothing is cut away; `loopd recover {id}` copies the {} good records before \
                 it into a new session",
                damage.why, good.lines
            );
            SessionError::Torn { path: path.clone(), line: damage.line, why }
        }
    };
    Err(Broken { error, damage: Some(Box::new(BrokenLog { epoch, path, damage, good, size })) })
}

/// Tells a creation that was cut off from a session whose baseline was lost.
async fn no_baseline<S: Storage>(
    storage: &S,
    dir: &Path,
    id: &SessionId,
    epoch: Epoch,
    error: BaselineError,
) -> Broken {
    let gone = matches!(&error, BaselineError::Io(_, e) if e.kind() == io::ErrorKind::NotFound);
    if gone && epoch == Epoch(0) && only_begun(storage, &log_path(dir, epoch)).await.unwrap_or(false) {
        return half_created(dir, id, "it has no baseline, and nothing was said in it").into();
    }
    let error = match error {
        BaselineError::Io(path, _) if gone => {
            let named = named_baseline(storage, &log_path(dir, epoch)).await.ok().flatten();
            BaselineError::Missing { path, named }
        }
        other => other,
    };
    SessionError::Baseline(error).into()
}

/// The digest of the baseline that a log's first line names.
async fn named_baseline<S: Storage>(storage: &S, log: &Path) -> io::Result<Option<Digest>> {
    let file = storage.open(log, Access::Read).await?;
    let mut lines = Lines::new(&file, 0);
    let first = lines.next().await?.and_then(|raw| raw.bytes);
    Ok(first.and_then(|line| Line::decode(line).ok()).and_then(|line| match line.record {
        LogRecord::SessionStart(start) => Some(start.baseline),
        _ => None,
    }))
}

/// Whether a log holds no whole line but those of its first append, which its creation wrote.
async fn only_begun<S: Storage>(storage: &S, log: &Path) -> io::Result<bool> {
    let file = storage.open(log, Access::Read).await?;
    let mut lines = Lines::new(&file, 0);
    while let Some(raw) = lines.next().await? {
        let intact = raw.bytes.filter(|line| Line::is_intact(line));
        if intact.is_some_and(|line| Line::place_of(line).is_none_or(|place| place.back != raw.at)) {
            return Ok(false);
        }
    }
    Ok(true)
}
