//! Nodes: one file per step of their life.

mod create;
mod idle;
mod inventory;
mod link;
mod provider;
mod stop;

pub(crate) use create::new_node;
pub(crate) use link::plain;
pub(crate) use stop::NodeFate;
