//! Bundles: one file per step of their life.

mod check;
mod create;
mod delete;
mod expand;
mod single;
mod template;
mod update;
