//! Submitting to the ring, and waiting for what was submitted.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{cqueue, squeue};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio_uring::{InFlightOneshot, OneshotOutputTransform, UnsubmittedOneshot};

/// The submission queue's length.
pub(super) const ENTRIES: u32 = 64;

/// How many entries may be in flight. While they are half of the queue at most, it never fills, so
/// tokio-uring never submits between the two entries of a linked pair.
const IN_FLIGHT: usize = 32;

/// How many of the kernel's threads may wait for the disk at once: one for each append that may be in flight. With
/// fewer, the syncs of sessions that write at once come one after the other instead of sharing the disk's.
pub(super) const WORKERS: u32 = 16;

/// tokio-uring ignores a failing `io_uring_enter` (EINTR, EAGAIN, EBUSY) and would then sleep for ever
/// with the entry unsubmitted. Each time the thread goes to sleep it submits again, so while anything is
/// in flight the thread is woken this often.
const FLUSH_AGAIN: Duration = Duration::from_millis(20);

thread_local! {
    static GATE: Arc<Semaphore> = Arc::new(Semaphore::new(IN_FLIGHT));
    static STARTED: RefCell<BTreeMap<u64, Instant>> = const { RefCell::new(BTreeMap::new()) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// How long the oldest operation on the disk that has not ended has been under way; `None` when there is
/// none. Of this thread's runtime.
#[must_use]
pub fn oldest_sync_age() -> Option<Duration> {
    STARTED.with_borrow(|started| started.first_key_value().map(|(_, since)| since.elapsed()))
}

/// Counts as an operation under way until it is dropped.
pub(super) struct Age(u64);

impl Age {
    pub(super) fn begin() -> Self {
        let number = COUNT.get().wrapping_add(1);
        COUNT.set(number);
        STARTED.with_borrow_mut(|started| started.insert(number, Instant::now()));
        Self(number)
    }
}

impl Drop for Age {
    fn drop(&mut self) {
        STARTED.with_borrow_mut(|started| started.remove(&self.0));
    }
}

/// What an operation holds from before it is submitted until the kernel has answered: its place in the
/// queue, and its mark as being under way.
pub(super) struct Ticket {
    _age: Age,
    // never closed: the error cannot occur, and an operation without its permit is still right
    _permit: Result<OwnedSemaphorePermit, AcquireError>,
}

/// Begins an operation of `entries` submission entries, and waits for it. `begin` must submit all of them
/// before its first await, and have the ticket held with them: then a caller that goes away drops nothing
/// that the kernel still uses.
pub(super) async fn run<T, F>(entries: u32, begin: impl FnOnce(Rc<Ticket>) -> F) -> T
where
    F: Future<Output = T>,
{
    let age = Age::begin();
    let permit = GATE.with(Arc::clone).acquire_many_owned(entries).await;
    let mut operation = pin!(begin(Rc::new(Ticket { _age: age, _permit: permit })));
    loop {
        if let Ok(result) = tokio::time::timeout(FLUSH_AGAIN, &mut operation).await {
            return result;
        }
    }
}

/// As [`run`], but a task of its own, so that what the operation gives (a file descriptor) is taken even when
/// the caller goes away.
///
/// # Errors
/// The task ended without a result: the runtime is being shut down.
pub(super) async fn spawn<T, F>(entries: u32, begin: impl FnOnce() -> F + 'static) -> io::Result<T>
where
    T: 'static,
    F: Future<Output = T> + 'static,
{
    let task = tokio_uring::spawn(run(entries, move |ticket| async move {
        let result = begin().await;
        drop(ticket);
        result
    }));
    task.await.map_err(io::Error::other)
}

/// Pushes one entry. `held` is kept until the kernel has answered, even if the future is dropped.
pub(super) fn submit<D: 'static, K>(
    held: D,
    kind: K,
    entry: squeue::Entry,
) -> InFlightOneshot<D, Answer<D, K>>
where
    K: Interpret<D>,
{
    UnsubmittedOneshot::new(held, Answer { kind, held: std::marker::PhantomData }, entry).submit()
}

/// Turns the kernel's number into a result.
pub(super) trait Interpret<D> {
    type Output;
    fn interpret(self, held: D, result: io::Result<u32>) -> Self::Output;
}

/// Nothing but success or failure.
pub(super) struct Done;

impl<D> Interpret<D> for Done {
    type Output = io::Result<()>;

    fn interpret(self, _held: D, result: io::Result<u32>) -> io::Result<()> {
        result.map(|_| ())
    }
}

/// A number of bytes, together with what was held: the buffer.
pub(super) struct Count;

impl<D> Interpret<D> for Count {
    type Output = (io::Result<usize>, D);

    fn interpret(self, held: D, result: io::Result<u32>) -> (io::Result<usize>, D) {
        (result.and_then(|n| usize::try_from(n).map_err(io::Error::other)), held)
    }
}

/// A new file descriptor.
pub(super) struct Fd;

impl<D> Interpret<D> for Fd {
    type Output = io::Result<OwnedFd>;

    fn interpret(self, _held: D, result: io::Result<u32>) -> io::Result<OwnedFd> {
        let fd = i32::try_from(result?).map_err(io::Error::other)?;
        // SAFETY: the kernel has just opened it for this operation; nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// The link between an operation's kind and tokio-uring.
pub(super) struct Answer<D, K> {
    kind: K,
    held: std::marker::PhantomData<D>,
}

// a phantom of D and the kind are moved freely; nothing is pinned
impl<D, K> Unpin for Answer<D, K> {}

impl<D: 'static, K: Interpret<D>> OneshotOutputTransform for Answer<D, K> {
    type Output = K::Output;
    type StoredData = D;

    fn transform_oneshot_output(self, data: D, cqe: cqueue::Entry) -> K::Output {
        let result = u32::try_from(cqe.result())
            .map_err(|_| io::Error::from_raw_os_error(cqe.result().saturating_neg()));
        self.kind.interpret(data, result)
    }
}
