//! Bundles: one file per step of their life.

mod check;
mod create;
mod delete;
mod expand;
mod faults;
mod single;
mod template;
mod update;

pub use faults::{BundleFault, bundle_faults};
