//! Codecs that leave messages as bytes: those of the RPC EventStream on both sides, and one for any call.
//!
//! The generated code encodes a message per subscriber and drops the number of an unknown kind. With these a Manager
//! sends bytes it has encoded once, and a client reads what [`super::decode`] needs.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::Encoded;
use crate::manager::EventStreamRequest;

/// The client's side: sends an [`EventStreamRequest`], receives encoded events.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientCodec;

/// The server's side: receives an [`EventStreamRequest`], sends encoded events.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerCodec;

/// Takes or gives a message.
#[derive(Debug)]
pub struct Messages<M>(PhantomData<M>);

/// Takes encoded events in parts, which are put together where the message is framed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts;

/// Takes or gives bytes; as a codec, in both directions: any call with what its caller encoded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

// === the codecs ===

impl Codec for ClientCodec {
    type Encode = EventStreamRequest;
    type Decode = Bytes;
    type Encoder = Messages<EventStreamRequest>;
    type Decoder = Raw;

    fn encoder(&mut self) -> Self::Encoder {
        Messages(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        Raw
    }
}

impl Codec for ServerCodec {
    type Encode = Encoded;
    type Decode = EventStreamRequest;
    type Encoder = Parts;
    type Decoder = Messages<EventStreamRequest>;

    fn encoder(&mut self) -> Self::Encoder {
        Parts
    }

    fn decoder(&mut self) -> Self::Decoder {
        Messages(PhantomData)
    }
}

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

// === their parts ===

impl<M: Message + 'static> Encoder for Messages<M> {
    type Item = M;
    type Error = Status;

    fn encode(&mut self, message: M, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message
            .encode(out)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl<M: Message + Default + 'static> Decoder for Messages<M> {
    type Item = M;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<M>, Status> {
        M::decode(bytes)
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl Encoder for Parts {
    type Item = Encoded;
    type Error = Status;

    fn encode(&mut self, event: Encoded, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(event.body.len() + event.place.len());
        out.put(event.body);
        out.put(event.place);
        Ok(())
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, bytes: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(bytes);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining())))
    }
}
