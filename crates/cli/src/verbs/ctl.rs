//! `greenroom ctl`: any call of the Manager's interface by its name, with JSON in and out (SDK-15).
//!
//! Nothing here knows a call: which there are, and what their messages hold, is read from the
//! descriptors that the interface was built from. So a call that is added is served from its first day.

use bytes::{Buf, BufMut};
use clap::Args;
use greenroom_sdk::proto::FILE_DESCRIPTOR_SET;
use greenroom_sdk::proto::convert::call::REQUEST_ID_METADATA;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions,
    ServiceDescriptor, Value,
};
use serde::de::DeserializeSeed;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Status, Streaming};

use super::connect::{Reach, not_reached};
use crate::failure::{Failure, Outcome};
use crate::output::Output;

const SERVICE: &str = "norsk.api.manager.Manager";
/// As the SDK takes them.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Make any call on the Manager by its name, e.g. `ctl KvGet --json '{"namespace":"a","key":"b"}'`.
///
/// Messages are JSON as protobuf has it: camelCase names, bytes as base64, 64-bit integers as text. A
/// stream prints one message a line.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Ctl {
    /// Name of the call; `list` prints all.
    call: String,
    /// The request.
    #[arg(long, default_value = "{}", value_name = "JSON")]
    json: String,
    /// Under this id a changing call takes effect once, however often it is made.
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// Print secrets instead of ***.
    #[arg(long)]
    show_secrets: bool,
    #[command(flatten)]
    reach: Reach,
}

// === impl Ctl ===

impl Ctl {
    pub(crate) async fn run(self) -> Outcome {
        let service = service()?;
        let output = Output { json: true };
        if self.call == "list" {
            for method in service.methods() {
                output.text(method.name())?;
            }
            return Ok(());
        }
        let method = service.methods().find(|it| it.name() == self.call);
        let method = method.ok_or_else(|| {
            let text = format!("the Manager's interface has no call {:?}", self.call);
            Failure::bad_input(text).hint("`greenroom ctl list` prints all")
        })?;
        let request = read(&method, &self.json)?;
        let request = Request::from_parts(self.metadata()?, Default::default(), request);
        let client = self.reach.connect().await?;
        let (channel, announce) = client.channel()?;
        let channel = InterceptedService::new(channel, announce);
        let mut grpc = Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        grpc.ready()
            .await
            .map_err(|error| not_reached(&self.reach.url(), &error))?;
        let path = format!("/{SERVICE}/{}", method.name());
        let path = http::uri::PathAndQuery::try_from(path)
            .map_err(|error| Failure::failed(error.to_string()))?;
        let codec = Dynamic(method.output());
        let url = self.reach.url();
        let refused = |status: Status| refused(&url, &status);
        if method.is_server_streaming() {
            let answer = grpc.server_streaming(request, path, codec).await;
            let messages = answer.map_err(refused)?.into_inner();
            print_all(output, messages, self.show_secrets, refused).await
        } else {
            let answer = grpc.unary(request, path, codec).await;
            let answer = answer.map_err(refused)?.into_inner();
            print(output, shown(answer, self.show_secrets))
        }
    }

    fn metadata(&self) -> Result<MetadataMap, Failure> {
        let mut metadata = MetadataMap::new();
        let value = |text: &str| {
            AsciiMetadataValue::try_from(text)
                .map_err(|error| Failure::bad_input(format!("--request-id: {error}")))
        };
        if let Some(id) = &self.request_id {
            metadata.insert(REQUEST_ID_METADATA, value(id)?);
        }
        Ok(metadata)
    }
}

// === helpers ===

fn service() -> Result<ServiceDescriptor, Failure> {
    // The descriptors were encoded by the build of this very program.
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET)
        .map_err(|error| Failure::failed(format!("the interface cannot be read: {error}")))?;
    pool.get_service_by_name(SERVICE)
        .ok_or_else(|| Failure::failed(format!("the interface has no service {SERVICE}")))
}

fn read(method: &MethodDescriptor, json: &str) -> Result<DynamicMessage, Failure> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let read = method.input().deserialize(&mut reader);
    read.and_then(|message| reader.end().map(|()| message))
        .map_err(|error| {
            let fields: Vec<String> = method
                .input()
                .fields()
                .map(|field| field.json_name().to_owned())
                .collect();
            let takes = match fields.len() {
                0 => format!("{} takes no fields", method.name()),
                _ => format!("{} takes {}", method.name(), fields.join(", ")),
            };
            Failure::bad_input(format!("--json: {error}")).hint(takes)
        })
}

/// Fields that hold what nobody should find in a terminal's history. Tokens that a call was made for
/// are not among them: who registers a slot asks for its token.
const SECRETS: &[&str] = &[
    "norsk.api.manager.DiscoveryFleet.leaf_token",
    "norsk.api.manager.DiscoveryFleet.tier_secret",
    "norsk.api.manager.DiscoveryFleet.tier_secret_alt",
    "norsk.api.manager.ClusterNode.token",
    "norsk.api.manager.ClusterMemberRegisterResponse.key_share",
];

/// A message with its secrets, or with stars for them (SEC-12).
fn shown(mut message: DynamicMessage, secrets: bool) -> DynamicMessage {
    if !secrets {
        mask(&mut message);
    }
    message
}

fn mask(message: &mut DynamicMessage) {
    for (field, value) in message.fields_mut() {
        let is_secret = SECRETS.contains(&field.full_name());
        match value {
            Value::String(text) if is_secret && !text.is_empty() => "***".clone_into(text),
            Value::Bytes(bytes) if is_secret && !bytes.is_empty() => *bytes = "***".into(),
            Value::Message(inner) => mask(inner),
            Value::List(values) => values.iter_mut().for_each(mask_within),
            Value::Map(values) => values.values_mut().for_each(mask_within),
            _ => {}
        }
    }
}

fn mask_within(value: &mut Value) {
    if let Value::Message(inner) = value {
        mask(inner);
    }
}

fn print(output: Output, message: DynamicMessage) -> Outcome {
    // Fields with their type's empty value are told too: a reader need not know which there are.
    let options = SerializeOptions::new().skip_default_fields(false);
    let value = message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| Failure::failed(format!("the answer cannot be written: {error}")))?;
    output.line(&value)
}

async fn print_all(
    output: Output,
    mut messages: Streaming<DynamicMessage>,
    show_secrets: bool,
    refused: impl Fn(Status) -> Failure,
) -> Outcome {
    while let Some(message) = messages.message().await.map_err(&refused)? {
        print(output, shown(message, show_secrets))?;
    }
    Ok(())
}

/// Status and reason, as SDK-15 has it.
fn refused(url: &str, status: &Status) -> Failure {
    if greenroom_sdk::plain_cause(status).contains(greenroom_sdk::NO_MANAGER) {
        return not_reached(url, status);
    }
    let reason = status
        .metadata()
        .get("greenroom-reason")
        .and_then(|reason| reason.to_str().ok());
    let told = reason.map(|reason| format!(" {reason}"));
    let told = told.unwrap_or_default();
    Failure::failed(format!("{:?}{told}: {}", status.code(), status.message()))
        .because(reason.unwrap_or_default())
}

// === impl Codec ===

/// Messages of a kind that is known only when the program runs; the descriptor is the answer's.
#[derive(Clone)]
struct Dynamic(MessageDescriptor);

struct Write;

struct Read(MessageDescriptor);

impl Codec for Dynamic {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Write;
    type Decoder = Read;

    fn encoder(&mut self) -> Write {
        Write
    }

    fn decoder(&mut self) -> Read {
        Read(self.0.clone())
    }
}

impl Encoder for Write {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, item: DynamicMessage, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item.encode_to_vec());
        Ok(())
    }
}

impl Decoder for Read {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let bytes = bytes.copy_to_bytes(bytes.remaining());
        DynamicMessage::decode(self.0.clone(), bytes)
            .map(Some)
            .map_err(|error| Status::internal(format!("the answer cannot be read: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    // spec: SDK-15
    #[test]
    fn every_call_of_the_interface_takes_an_empty_request_and_says_what_it_knows() {
        let service = service().unwrap();
        assert!(service.methods().len() > 50);
        for method in service.methods() {
            read(&method, "{}").unwrap_or_else(|error| panic!("{}: {error}", method.name()));
            let error = read(&method, r#"{"noSuchField": 1}"#).unwrap_err();
            assert_eq!(error.exit, Exit::BadInput);
            let hint = error.hint.unwrap();
            assert!(
                hint.starts_with(&format!("{} takes ", method.name())),
                "{hint}"
            );
        }
    }

    // spec: SEC-12
    #[test]
    fn secrets_in_answers_are_stars_unless_they_are_asked_for() {
        let service = service().unwrap();
        let pool = service.parent_pool();
        for name in SECRETS {
            let (message, field) = name.rsplit_once('.').unwrap();
            let message = pool.get_message_by_name(message);
            let message = message.unwrap_or_else(|| panic!("{name} is no field of the interface"));
            assert!(message.get_field_by_name(field).is_some(), "{name}");
        }
        let method = |name: &str| service.methods().find(|it| it.name() == name).unwrap();
        let answer = |name: &str, json: &str| {
            let mut reader = serde_json::Deserializer::from_str(json);
            DynamicMessage::deserialize(method(name).output(), &mut reader).unwrap()
        };
        for (name, json) in [
            (
                "GetDiscoveryFleet",
                r#"{"fleet":{"addresses":["a:1"],"leafToken":"s3cr3t","tierSecret":"s3cr3t","tierSecretAlt":"s3cr3t"}}"#,
            ),
            (
                "RotateDiscoveryTierSecret",
                r#"{"fleet":{"tierSecret":"s3cr3t"}}"#,
            ),
            (
                "PublishDiscoveryFleet",
                r#"{"fleet":{"leafToken":"s3cr3t"}}"#,
            ),
            (
                "ListClusterNodes",
                r#"{"nodes":[{"nodeId":"n","token":"s3cr3t"}]}"#,
            ),
            (
                "ClusterMemberRegister",
                r#"{"nodeId":"n","keyShare":"czNjcjN0"}"#,
            ),
        ] {
            let answer = answer(name, json);
            let told = format!("{:?}", shown(answer.clone(), false));
            assert!(
                !told.contains("s3cr3t") && told.contains("***"),
                "{name}: {told}"
            );
            assert_eq!(shown(answer.clone(), true), answer);
        }
    }

    // spec: SDK-15
    #[test]
    fn a_request_is_written_as_the_interface_has_it() {
        let service = service().unwrap();
        let method = service.methods().find(|it| it.name() == "KvCommit");
        let json =
            r#"{"namespace":"a","writes":[{"key":"k","value":"aGk=","expectedRevision":"3"}]}"#;
        let message = read(&method.unwrap(), json).unwrap();
        let expected = greenroom_sdk::proto::manager::KvCommitRequest {
            namespace: "a".to_owned(),
            writes: vec![greenroom_sdk::proto::manager::KvWrite {
                key: "k".to_owned(),
                value: b"hi".to_vec(),
                delete: false,
                expected_revision: Some(3),
            }],
            ..Default::default()
        };
        assert_eq!(message.encode_to_vec(), expected.encode_to_vec());
    }
}
