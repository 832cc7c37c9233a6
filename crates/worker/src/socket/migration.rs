//! Messages about migrations: what a job says is read, what it is to be told is written (SOCK-07 to
//! SOCK-13). In which order they make sense is decided in [`crate::handover`].

use greenroom_types::{MigrationId, PAYLOAD_MAX, Payload};
use serde_json::{Value, json};

use super::line::Message;
use crate::agent::JobSaid;
use crate::handover::{Answer, At, Request};

/// Numbers of requests that are remembered of a speaker, so that its answers find them.
const ASKED_MAX: usize = 16;
/// A reason of a job is cut to this many bytes.
const REASON_MAX: usize = 4 << 10;

/// What was asked of the present speaker: id of the message, number of the request.
#[derive(Debug, Default)]
pub(super) struct Asked(Vec<(u64, u64)>);

/// Why a message about a migration cannot be read.
#[derive(Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) code: &'static str,
    pub(super) text: String,
}

// === impl Asked ===

impl Asked {
    pub(super) fn note(&mut self, id: u64, number: u64) {
        if self.0.len() == ASKED_MAX {
            self.0.remove(0);
        }
        self.0.push((id, number));
    }

    /// Another speaker: it was asked nothing yet.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn number(&self, id: Option<u64>) -> Option<u64> {
        let found = self.0.iter().find(|(asked, _)| Some(*asked) == id)?;
        Some(found.1)
    }
}

/// Reads a message about a migration; none for any other.
pub(super) fn read(message: &Message, at: At, asked: &Asked) -> Option<Result<JobSaid, Fault>> {
    let reason = || {
        let mut reason = message.text("reason").unwrap_or_default().to_owned();
        reason.truncate(reason.floor_char_boundary(REASON_MAX));
        reason
    };
    let migration_id = || MigrationId::new(message.text("migrationId").unwrap_or_default());
    let answer = match message.kind.as_str() {
        "state" => payload(message).map(Answer::State),
        "refuse" => Ok(Answer::Refuse(reason())),
        "stoppedOutput" => payload(message).map(Answer::StoppedOutput),
        "applied" => payload(message).map(Answer::Applied),
        "resumed" => Ok(Answer::Resumed),
        "dropped" => Ok(Answer::Dropped),
        "working" => Ok(Answer::Working),
        "ready" => {
            return Some(payload(message).map(|payload| JobSaid::Ready {
                at,
                migration_id: migration_id(),
                payload,
            }));
        }
        "failed" => {
            return Some(Ok(JobSaid::Failed {
                at,
                migration_id: migration_id(),
                reason: reason(),
            }));
        }
        _ => return None,
    };
    let to = asked.number(message.re);
    Some(answer.map(|answer| JobSaid::Answer { at, to, answer }))
}

/// The payload of a message; an absent one is empty (SOCK-09).
fn payload(message: &Message) -> Result<Payload, Fault> {
    let text = match message.fields.get("payload") {
        None | Some(Value::Null) => return Ok(Payload::default()),
        Some(Value::String(text)) => text,
        Some(_) => return Err(bad_payload("it is no string")),
    };
    let payload = Payload::from_base64(text).map_err(|error| bad_payload(&error.to_string()))?;
    if payload.len() > PAYLOAD_MAX {
        return Err(Fault {
            code: "payload_too_large",
            text: format!(
                "the payload has {} bytes: at most {PAYLOAD_MAX}",
                payload.len()
            ),
        });
    }
    Ok(payload)
}

fn bad_payload(why: &str) -> Fault {
    Fault {
        code: "bad_payload",
        text: format!("a payload is base64 with its padding: {why}"),
    }
}

/// A request as a message: its type and its fields.
pub(super) fn write(migration_id: &MigrationId, request: &Request) -> (&'static str, Value) {
    let migration_id = migration_id.as_str();
    match request {
        Request::GetState => ("getState", json!({ "migrationId": migration_id })),
        Request::StopOutput(at) => (
            "stopOutput",
            json!({ "migrationId": migration_id, "at": at.to_base64() }),
        ),
        Request::Begin(at) => (
            "begin",
            json!({ "migrationId": migration_id, "at": at.to_base64() }),
        ),
        Request::Abort(reason) => (
            "abort",
            json!({ "migrationId": migration_id, "reason": reason }),
        ),
    }
}

/// The words of a refusal (SOCK-08, SOCK-11).
pub(super) fn refusal(code: &str, expected: &str) -> Value {
    let text = match code {
        "wrong_migration" => "the instance is not the target of that migration".to_owned(),
        _ => format!("out of order: {expected} is waited for"),
    };
    json!({ "text": text, "expected": expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: At = At {
        connection: 1,
        id: 2,
    };

    fn said(line: &str) -> Option<Result<JobSaid, Fault>> {
        let mut asked = Asked::default();
        asked.note(7, 1);
        read(&Message::parse(line.as_bytes()).unwrap(), AT, &asked)
    }

    // spec: SOCK-09
    #[test]
    fn payloads_are_base64_and_exact_and_bounded() {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = Payload::from(bytes.clone()).to_base64();
        let line = format!(r#"{{"type":"state","id":2,"re":7,"payload":"{text}"}}"#);
        let expected = JobSaid::Answer {
            at: AT,
            to: Some(1),
            answer: Answer::State(bytes.into()),
        };
        assert_eq!(said(&line), Some(Ok(expected)));
        let fault = |payload: &str| {
            let line =
                format!(r#"{{"type":"ready","id":2,"migrationId":"m","payload":{payload}}}"#);
            said(&line).unwrap().unwrap_err().code
        };
        assert_eq!(fault("5"), "bad_payload");
        assert_eq!(fault("\"a\""), "bad_payload");
        let at_most = Payload::from(vec![0; PAYLOAD_MAX]).to_base64();
        let line = format!(r#"{{"type":"applied","id":2,"re":7,"payload":"{at_most}"}}"#);
        assert!(said(&line).unwrap().is_ok());
        let over = Payload::from(vec![0; PAYLOAD_MAX + 1]).to_base64();
        assert_eq!(fault(&format!("{over:?}")), "payload_too_large");
    }

    // spec: SOCK-07, SOCK-08
    #[test]
    fn every_message_of_a_migration_is_known() {
        for (kind, answer) in [
            ("state", Answer::State(Payload::default())),
            ("refuse", Answer::Refuse("no".to_owned())),
            ("stoppedOutput", Answer::StoppedOutput(Payload::default())),
            ("applied", Answer::Applied(Payload::default())),
            ("resumed", Answer::Resumed),
            ("dropped", Answer::Dropped),
            ("working", Answer::Working),
        ] {
            let line = format!(r#"{{"type":"{kind}","id":2,"re":9,"reason":"no"}}"#);
            // It answers nothing that was asked.
            let (at, to) = (AT, None);
            let expected = JobSaid::Answer { at, to, answer };
            assert_eq!(said(&line), Some(Ok(expected)), "{kind}");
        }
        assert_eq!(said(r#"{"type":"status","id":2}"#), None);
        let id = MigrationId::from("m");
        for (request, line) in [
            (Request::GetState, json!(["getState", {"migrationId": "m"}])),
            (
                Request::StopOutput(b"\x00\xff".into()),
                json!(["stopOutput", {"migrationId": "m", "at": "AP8="}]),
            ),
            (
                Request::Begin(Payload::default()),
                json!(["begin", {"migrationId": "m", "at": ""}]),
            ),
            (
                Request::Abort("why".to_owned()),
                json!(["abort", {"migrationId": "m", "reason": "why"}]),
            ),
        ] {
            let (kind, fields) = write(&id, &request);
            assert_eq!(json!([kind, fields]), line);
        }
    }
}
