//! The status page: `/` for people, `/status.json` for programs (MEDIA-03).
//!
//! Read-only, without authentication: it says what anyone who receives the stream can see.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::{State, Status, StatusSource};

/// How long a client may take over its request; it frees the connection of one that says nothing.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server; ends when dropped.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    task: AbortHandle,
}

// === impl Server ===

impl Server {
    pub(super) async fn start(address: SocketAddr, source: StatusSource) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(accept(listener, source)).abort_handle();
        Ok(Self { address, task })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, source: StatusSource) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = source.clone();
                let service = service_fn(move |request| {
                    let source = source.clone();
                    async move { respond(&request, &source).await }
                });
                tokio::spawn(async move {
                    let served = hyper::server::conn::http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEADER_TIMEOUT)
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                    if let Err(error) = served {
                        tracing::debug!(%error, "status connection ended");
                    }
                });
            }
            Err(error) => {
                // Out of file descriptors, mostly: trying again at once would only spin.
                tracing::warn!(%error, "cannot accept a status connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn respond(
    request: &Request<Incoming>,
    source: &StatusSource,
) -> Result<Response<String>, Infallible> {
    let status = source.status();
    if status.state == State::Hung {
        std::future::pending::<()>().await;
    }
    let (code, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/") => {
            (StatusCode::OK, "text/html; charset=utf-8", page(&status))
        }
        (&Method::GET | &Method::HEAD, "/status.json") => match serde_json::to_string(&status) {
            Ok(json) => (StatusCode::OK, "application/json", json),
            Err(error) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "text/plain",
                error.to_string(),
            ),
        },
        (_, "/" | "/status.json") => (
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain",
            "only GET and HEAD\n".to_owned(),
        ),
        _ => (
            StatusCode::NOT_FOUND,
            "text/plain",
            "only / and /status.json are here\n".to_owned(),
        ),
    };
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if code == StatusCode::METHOD_NOT_ALLOWED {
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    Ok(response)
}

/// The page: one table, no script, reloads itself.
fn page(status: &Status) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let number = |value: Option<u64>| value.map_or_else(|| "none".to_owned(), |n| n.to_string());
    let targets: Vec<String> = status.targets.iter().map(ToString::to_string).collect();
    let rows = [
        ("State", status.state.to_string()),
        ("Channel", status.channel.clone()),
        ("Sent to", targets.join(", ")),
        ("Since", status.started_at.clone()),
        (
            "Rate",
            format!(
                "{} packets per second of {} bytes",
                status.rate, status.size_bytes
            ),
        ),
        ("SSRC", status.ssrc.clone()),
        ("Last number", number(status.last_number)),
        ("Packets sent", status.packets.to_string()),
        ("Packets skipped because late", status.skipped.to_string()),
        ("Send errors", status.send_errors.to_string()),
        ("Last error", text(&status.last_error)),
        ("Job", text(&status.job_id)),
        ("Role in the slot", text(&status.runtime_role)),
        ("Role of the instance", text(&status.role)),
        ("Service", text(&status.service)),
        ("Node", text(&status.node_id)),
        ("Start id", text(&status.start_id)),
        ("Fence", number(status.fence)),
        (
            "Faults",
            if status.faults.is_empty() {
                "none".into()
            } else {
                status.faults.join(", ")
            },
        ),
    ];
    let title = escape(&status.channel);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"refresh\" content=\"2\"><title>Test card {title}</title></head>\n\
         <body><h1>Test card {title}</h1>\n<table>\n"
    );
    for (name, value) in rows {
        html += &format!(
            "<tr><th align=\"left\">{name}</th><td>{}</td></tr>\n",
            escape(&value)
        );
    }
    html += "</table>\n</body></html>\n";
    html
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
