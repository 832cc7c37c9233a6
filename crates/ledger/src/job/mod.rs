//! Jobs: one file per step of their life.

pub(crate) mod check;
mod create;
mod delete;
mod start;
mod stop;
mod update;
mod verdict;

pub(crate) use delete::GRACE;
pub(crate) use start::check_startable;
pub(crate) use stop::grace;
pub(crate) use verdict::REASON_BYTES;
