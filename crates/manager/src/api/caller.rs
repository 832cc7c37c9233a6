//! Who calls, in which protocol, and under which request id.

use greenroom_auth::{Principal, Role};
use greenroom_proto::convert::call::{
    PROTOCOL_MAJOR, PROTOCOL_MINOR, REQUEST_ID_METADATA, read_protocol, refuse,
};
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_types::call::{Refusal, Status};
use tonic::Extensions;
use tonic::metadata::MetadataMap;

use crate::engine::Caller;

/// Reads the caller from a call's metadata, and from what the guard found out about it.
pub(super) fn read(
    metadata: &MetadataMap,
    extensions: &Extensions,
) -> Result<Caller, tonic::Status> {
    let (major, minor) = read_protocol(metadata).map_err(|error| write_refusal(&refuse(error)))?;
    if major != PROTOCOL_MAJOR {
        let refusal = Refusal::new(
            Status::FailedPrecondition,
            "protocol_major",
            format!(
                "the caller speaks protocol {major}.{minor}, this Manager {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}: \
                 use a client of major {PROTOCOL_MAJOR}"
            ),
        )
        .with("expected", format!("{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"))
        .with("actual", format!("{major}.{minor}"));
        return Err(write_refusal(&refusal));
    }
    // Calls that need no credential have no principal; they may do no more than a viewer (API-10).
    let (actor, role) = match extensions.get::<Principal>() {
        Some(principal) => (principal.name.clone(), principal.role),
        None => ("nobody".to_owned(), Role::Viewer),
    };
    Ok(Caller {
        actor,
        role,
        protocol_minor: minor,
        request_id: request_id(metadata)?,
    })
}

fn request_id(metadata: &MetadataMap) -> Result<Option<String>, tonic::Status> {
    let Some(value) = metadata.get(REQUEST_ID_METADATA) else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(text)
            if (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()) =>
        {
            Ok(Some(text.to_owned()))
        }
        _ => Err(write_refusal(&Refusal::new(
            Status::InvalidArgument,
            "bad_request_id",
            format!("{REQUEST_ID_METADATA} must be 1 to 64 visible ASCII characters"),
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(metadata: &MetadataMap) -> Result<Caller, tonic::Status> {
        super::read(metadata, &Extensions::default())
    }

    fn reason(metadata: &MetadataMap) -> String {
        let status = read(metadata).unwrap_err();
        greenroom_proto::convert::refusal::read_refusal(&status)
            .unwrap()
            .reason
    }

    // spec: HELLO-02, HELLO-03
    #[test]
    fn a_published_client_says_no_protocol_and_another_major_is_refused() {
        let mut metadata = MetadataMap::new();
        assert_eq!(read(&metadata).unwrap().protocol_minor, 0);
        metadata.insert("greenroom-protocol", "1.4".parse().unwrap());
        assert_eq!(read(&metadata).unwrap().protocol_minor, 4);
        metadata.insert("greenroom-protocol", "1.99".parse().unwrap());
        assert_eq!(read(&metadata).unwrap().protocol_minor, 99);
        metadata.insert("greenroom-protocol", "2.0".parse().unwrap());
        assert_eq!(reason(&metadata), "protocol_major");
    }

    #[test]
    fn a_request_id_is_short_and_visible() {
        let mut metadata = MetadataMap::new();
        metadata.insert(REQUEST_ID_METADATA, "abc-1".parse().unwrap());
        assert_eq!(
            read(&metadata).unwrap().request_id.as_deref(),
            Some("abc-1")
        );
        metadata.insert(REQUEST_ID_METADATA, "a b".parse().unwrap());
        assert_eq!(reason(&metadata), "bad_request_id");
        metadata.insert(REQUEST_ID_METADATA, "x".repeat(65).parse().unwrap());
        assert_eq!(reason(&metadata), "bad_request_id");
    }
}
