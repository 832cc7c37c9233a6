//! A refusal goes through the headers of an answer, as a client gets it, and comes back the same.

use prost::Message;
use tonic::{Code, Status};

use super::*;

/// Through HTTP headers and back: what a client of the call sees.
fn over_the_wire(refusal: Refusal) -> Status {
    let response = Status::from(refusal).into_http::<()>();
    Status::from_header_map(response.headers()).expect("a refusal is a status in the headers")
}

fn details_of(status: &Status) -> error::Status {
    error::Status::decode(status.details()).expect("details hold a norsk.api.error.Status")
}

// spec: API-08
#[test]
fn every_refusal_carries_trailer_and_named_values() {
    let above = (1_u64 << 53) + 1;
    let refusal = Refusal::new(Code::AlreadyExists, "job_exists", "job \"a\" exists")
        .with("hash", 42_i64)
        .with("greatest_exact", 1_u64 << 53)
        .with("above", above)
        .with("below", -(above as i64))
        .with("state", "running")
        .with("known", true)
        .with("primary", None::<&str>)
        .with(
            "problems",
            vec![Detail::named([
                ("path", "services[0].name".into()),
                ("actual", "X".into()),
            ])],
        );
    let status = over_the_wire(refusal.clone());

    assert_eq!(status.code(), Code::AlreadyExists);
    let trailer = status
        .metadata()
        .get("greenroom-reason")
        .and_then(|value| value.to_str().ok());
    assert_eq!(trailer, Some("job_exists"));

    let details = details_of(&status);
    assert_eq!(details.code, error::Code::AlreadyExists as i32);
    assert_eq!(details.message, "job \"a\" exists");
    let fields = details.details.expect("named values").fields;
    let kind = |name: &str| fields[name].kind.clone().expect("a kind");
    use error::value::Kind;
    assert_eq!(kind("hash"), Kind::NumberValue(42.0));
    assert_eq!(
        kind("greatest_exact"),
        Kind::NumberValue(9_007_199_254_740_992.0)
    );
    assert_eq!(kind("above"), Kind::StringValue("9007199254740993".into()));
    assert_eq!(kind("below"), Kind::StringValue("-9007199254740993".into()));
    let Kind::ListValue(problems) = kind("problems") else {
        panic!("problems is a list")
    };
    assert_eq!(problems.values.len(), 1);

    let read = Refusal::read(&status).expect("a refusal of ours");
    assert_eq!(read, refusal);
    assert_eq!(read.detail("above").and_then(Detail::as_u64), Some(above));
    assert_eq!(
        read.detail("below").and_then(Detail::as_i64),
        Some(-(above as i64))
    );
    assert_eq!(read.detail("hash").and_then(Detail::as_u64), Some(42));
    assert_eq!(
        read.detail("problems")
            .and_then(Detail::as_list)
            .map(<[_]>::len),
        Some(1)
    );
    assert_eq!(
        read.detail("state").and_then(Detail::as_text),
        Some("running")
    );
}

#[test]
fn a_status_without_reason_is_not_a_refusal_of_ours() {
    assert_eq!(
        Refusal::read(&Status::unavailable("connection refused")),
        None
    );
    let mut foreign = Status::internal("x");
    foreign
        .metadata_mut()
        .insert(REASON_TRAILER, MetadataValue::from_static("Not A Token"));
    assert_eq!(Refusal::read(&foreign), None);
}

#[test]
fn unreadable_details_leave_code_reason_and_message() {
    let mut metadata = MetadataMap::new();
    metadata.insert(REASON_TRAILER, MetadataValue::from_static("disk_full"));
    let garbled = vec![0xff, 0xff, 0xff];
    let status = Status::with_details_and_metadata(
        Code::ResourceExhausted,
        "no room",
        garbled.into(),
        metadata,
    );
    let read = Refusal::read(&status).expect("the reason is there");
    assert_eq!(
        (read.reason.as_ref(), read.message.as_str()),
        ("disk_full", "no room")
    );
    assert!(read.details.is_empty());
}

#[test]
fn long_refusals_fit_into_headers_and_count_what_is_missing() {
    let problems: Vec<String> = (0..1_000)
        .map(|at| format!("services[{at}].name is empty"))
        .collect();
    let refusal = Refusal::new(Code::InvalidArgument, "bad_job", "é".repeat(10_000))
        .with("problems", problems)
        .with("expected", "x".repeat(10_000));
    let status = Status::from(refusal);
    assert_eq!(status.message().len(), MESSAGE_BYTES_MAX);

    let headers = status.clone().into_http::<()>();
    let bytes: usize = headers
        .headers()
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 32)
        .sum();
    assert!(bytes < 16 * 1024, "{bytes} bytes of headers");

    let read = Refusal::read(&status).expect("a refusal of ours");
    let kept = read
        .detail("problems")
        .and_then(Detail::as_list)
        .expect("problems")
        .len();
    let left_out = read
        .detail(LEFT_OUT)
        .and_then(Detail::as_u64)
        .expect("a count");
    assert_eq!(kept as u64 + left_out, 1_000);
}

#[test]
fn numbers_that_are_no_integers_are_not_read_as_such() {
    assert_eq!(Detail::from(0.5).as_u64(), None);
    assert_eq!(Detail::from(-1_i32).as_u64(), None);
    assert_eq!(Detail::from(f64::NAN).as_i64(), None);
    assert_eq!(Detail::from(1e300).as_i64(), None);
    assert_eq!(Detail::from(u64::MAX).as_u64(), Some(u64::MAX));
    assert_eq!(Detail::from(i64::MIN).as_i64(), Some(i64::MIN));
}

#[test]
#[should_panic(expected = "a reason is of [a-z_]+")]
fn a_reason_with_other_characters_is_a_bug() {
    let _ = Refusal::new(Code::Internal, "Bad Reason", "");
}
