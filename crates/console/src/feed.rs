//! Callbacks as server-sent events: the event's name is the callback's, its data the callback as
//! JSON. A listener that fell behind gets `lagged`; when the instance is over it gets `ended`, and
//! connects again for the next one.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, StreamExt, stream};
use greenroom_auto::{Heard, callback_name};
use http::StatusCode;

use crate::failure::Failure;
use crate::routes::present;
use crate::server::Shared;

/// A comment is sent after this long without a callback, so that both sides notice a dead connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(crate) async fn callbacks(
    State(shared): State<Arc<Shared>>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Failure> {
    let instance = present(&shared)?;
    let permit = Arc::clone(&shared.listeners)
        .try_acquire_owned()
        .map_err(|_| {
            let message = "as many listeners as there may be are connected; end one first";
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "tooManyListeners", message)
        })?;
    let heard = instance.callbacks().map(|heard| event(&heard));
    let ended = stream::once(async { Event::default().event("ended").data("{}") });
    let events = heard
        .chain(ended)
        .take_until(shared.stop.clone().cancelled_owned())
        .map(move |event| {
            // Held until the stream is dropped.
            let _ = &permit;
            Ok(event)
        });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

fn event(heard: &Heard) -> Event {
    match heard {
        Heard::Callback(callback) => match serde_json::to_string(&**callback) {
            Ok(data) => Event::default().event(callback_name(callback)).data(data),
            Err(error) => {
                let data = serde_json::json!({ "message": error.to_string() });
                Event::default().event("unwritable").data(data.to_string())
            }
        },
        Heard::Lagged(missed) => {
            let data = serde_json::json!({ "missed": missed });
            Event::default().event("lagged").data(data.to_string())
        }
    }
}
