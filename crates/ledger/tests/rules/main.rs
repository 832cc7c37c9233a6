//! The rules of the ledger, told as: given this state, this command; then that outcome, those
//! changes and orders. Every apply also proves that rows rebuild the state (see `common`).

mod audit;
mod bundles;
mod common;
mod field;
mod fleet;
mod idle;
mod instances;
mod jobs;
mod keeper;
mod kv;
mod leases;
mod nodes;
mod relay;
mod rows;
mod slots;
mod strays;
mod stream;
