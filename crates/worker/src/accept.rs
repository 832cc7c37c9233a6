//! Connections to the worker, as its server takes them.
//!
//! At its end the server waits until each connection is over. One on which nothing was ever asked, as
//! of a port scan or a balancer's probe, is over when the worker says so: otherwise a silent caller
//! would hold up every end of a worker for as long as it is waited for at most.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// Bytes with which every caller begins, before it asks anything (RFC 9113).
const PREFACE: usize = 24;

/// One connection.
pub(crate) struct Accepted<S> {
    socket: S,
    /// Bytes that came.
    heard: usize,
    ending: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// The connections that come in, until `ending`.
pub(crate) fn accepted<S>(
    incoming: impl Stream<Item = io::Result<S>>,
    ending: CancellationToken,
) -> impl Stream<Item = io::Result<Accepted<S>>> {
    incoming.map(move |socket| Ok(Accepted::new(socket?, &ending)))
}

// === impl Accepted ===

impl<S> Accepted<S> {
    fn new(socket: S, ending: &CancellationToken) -> Self {
        Self {
            socket,
            heard: 0,
            ending: Box::pin(ending.clone().cancelled_owned()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Accepted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buffer);
        if read.is_ready() || self.heard >= PREFACE {
            self.heard = self.heard.saturating_add(buffer.filled().len() - before);
            return read;
        }
        // Nothing read is how a reader is told that nothing more will come.
        ready!(self.ending.as_mut().poll(cx));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Accepted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

impl<S: Connected> Connected for Accepted<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.socket.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_stream::wrappers::TcpListenerStream;

    use super::*;

    async fn pair(ending: &CancellationToken) -> (TcpStream, Accepted<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut incoming = Box::pin(accepted(TcpListenerStream::new(listener), ending.clone()));
        let (caller, socket) = tokio::join!(TcpStream::connect(address), incoming.next());
        (caller.unwrap(), socket.unwrap().unwrap())
    }

    // spec: WORK-61
    #[tokio::test]
    async fn a_silent_caller_does_not_hold_up_the_end() {
        let ending = CancellationToken::new();
        let (_caller, mut socket) = pair(&ending).await;
        let mut text = Vec::new();
        let read = tokio::spawn(async move { socket.read_to_end(&mut text).await.unwrap() });
        ending.cancel();
        assert_eq!(read.await.unwrap(), 0);
    }

    // spec: WORK-61
    #[tokio::test]
    async fn one_who_speaks_is_heard_to_the_end() {
        let ending = CancellationToken::new();
        let (mut caller, mut socket) = pair(&ending).await;
        let mut preface = [0; PREFACE];
        caller.write_all(&preface).await.unwrap();
        socket.read_exact(&mut preface).await.unwrap();
        ending.cancel();
        let mut byte = [0];
        {
            let next = socket.read(&mut byte);
            tokio::pin!(next);
            assert!(
                futures::poll!(&mut next).is_pending(),
                "its streams are ended first"
            );
        }
        caller.write_all(&[7]).await.unwrap();
        assert_eq!(socket.read(&mut byte).await.unwrap(), 1);
        assert_eq!(byte, [7]);
    }
}
