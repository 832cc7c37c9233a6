//! The SDK against a server that plays scripted answers over a real connection.

mod calls;
mod connection;
mod events;
mod fake;
