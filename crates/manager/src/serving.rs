//! Connections, each with a server of its own, so that one of them can be ended in order: its client is
//! told which of its calls were taken, and makes the others over a new connection.

use std::convert::Infallible;
use std::pin::Pin;

use futures::StreamExt as _;
use futures::stream;
use greenroom_tls::{Incoming, Io};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::transport::Error;

/// When a connection is to be ended in order.
pub(crate) type End = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What comes from one door to one server, which would otherwise end with its last connection.
pub(crate) type Alone = Pin<Box<dyn futures::Stream<Item = Result<Io, Infallible>> + Send>>;

/// Serves what comes in until `closed` resolves; then takes no more, and resolves when all connections
/// have ended in order.
pub(crate) async fn serve<F>(
    mut incoming: Incoming,
    closed: impl Future<Output = ()>,
    one: impl Fn(Alone, End) -> F,
) where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let (closing, _) = watch::channel(false);
    let mut serving = JoinSet::new();
    let mut closed = std::pin::pin!(closed);
    loop {
        tokio::select! {
            () = &mut closed => break,
            Some(done) = serving.join_next() => tell(done),
            Some(Ok(io)) = incoming.next() => {
                let leaving = io.leaving();
                let mut closing = closing.subscribe();
                let end = async move {
                    tokio::select! {
                        () = leaving => {}
                        // Without a sender this is the end as well.
                        _ = closing.wait_for(|closing| *closing) => {}
                    }
                };
                let alone = stream::once(async { Ok(io) }).chain(stream::pending());
                serving.spawn(one(Box::pin(alone), Box::pin(end)));
            }
        }
    }
    drop(incoming);
    closing.send_replace(true);
    while let Some(done) = serving.join_next().await {
        tell(done);
    }
}

fn tell(done: Result<Result<(), Error>, tokio::task::JoinError>) {
    match done {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "a connection could not be served"),
        Err(error) => tracing::error!(%error, "serving a connection failed"),
    }
}
