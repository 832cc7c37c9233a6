//! The test signal and the meter: a live signal that needs no codec, and a monitor that reports
//! what a viewer would notice (docs/spec/media.md).
//!
//! [`testcard`] sends numbered packets that are locked to the wall clock; [`probe`] receives and
//! says who was on air when, what was silent, missing, repeated, late or doubled. The rules of
//! both are pure modules with time as an argument ([`packet`], [`rate`], `testcard::pacer`,
//! [`probe::analyser`]); one thread each drives the sockets.
//!
//! It does not print (the caller passes writers), parse command lines, speak the job socket, or
//! decode any picture or sound.

pub mod duration;
pub mod env;
mod net;
pub mod packet;
pub mod probe;
pub mod rate;
pub mod stop;
pub mod testcard;

pub use net::Error as NetError;
