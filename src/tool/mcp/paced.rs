//! A transport that reads no more of a server's requests than it can answer.
//!
//! Each request of a server (a ping, say) is answered by the SDK, and the answers to a server that does not read them
//! would wait in memory without a bound.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::Notify;

/// How many requests of a server may wait for their answers to be sent.
const UNANSWERED: usize = 64;

/// Another transport, with a bound on the server's requests.
pub struct Paced<T> {
    inner: T,
    open: Arc<Open>,
}

/// The server's requests whose answers were not sent yet.
#[derive(Default)]
struct Open {
    count: AtomicUsize,
    less: Notify,
}

/// An answer that is being sent; counts as sent when it is dropped.
struct Answer(Arc<Open>);

impl Drop for Answer {
    fn drop(&mut self) {
        // a server may be answered what it never asked
        let less = |count: usize| Some(count.saturating_sub(1));
        let _before = self.0.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.0.less.notify_one();
    }
}

impl<T> Paced<T> {
    /// Nothing is open yet.
    pub fn new(inner: T) -> Self {
        Self { inner, open: Arc::default() }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Paced<T> {
    type Error = T::Error;

    fn name() -> Cow<'static, str> {
        T::name()
    }

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let answers = matches!(
            item,
            TxJsonRpcMessage::<RoleClient>::Response(_) | TxJsonRpcMessage::<RoleClient>::Error(_)
        );
        let answer = answers.then(|| Answer(Arc::clone(&self.open)));
        let sent = self.inner.send(item);
        async move {
            let _until_sent = answer;
            sent.await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        while self.open.count.load(Ordering::Relaxed) >= UNANSWERED {
            self.open.less.notified().await;
        }
        let message = self.inner.receive().await;
        if let Some(RxJsonRpcMessage::<RoleClient>::Request(_)) = &message {
            self.open.count.fetch_add(1, Ordering::Relaxed);
        }
        message
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}
