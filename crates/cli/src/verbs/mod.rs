//! One module per verb or group of verbs.

pub(crate) mod acting;
pub(crate) mod apply;
pub(crate) mod audit;
pub(crate) mod connect;
pub(crate) mod control;
pub(crate) mod ctl;
pub(crate) mod demo;
pub(crate) mod drain;
pub(crate) mod events;
pub(crate) mod files;
pub(crate) mod get;
mod history;
pub(crate) mod init;
pub(crate) mod job_socket;
pub(crate) mod lists;
pub(crate) mod logs;
pub(crate) mod manager;
pub(crate) mod media;
pub(crate) mod migrate;
pub(crate) mod node;
pub(crate) mod scenario;
pub(crate) mod schema;
pub(crate) mod spares;
pub(crate) mod token;
pub(crate) mod up;
mod wait;
pub(crate) mod worker;
