//! The policy core against a hand-driven Manager: each test is a situation of docs/spec/policy.md,
//! told in events and answered in calls and callbacks.

mod brief;
mod ceiling;
mod contract;
mod cordon;
mod drain;
mod drain_again;
mod drain_told;
mod field;
mod field_stock;
mod health;
mod hydration;
mod interruption;
mod job_record;
mod launch;
mod lease_wait;
mod lifecycle;
mod migration;
mod migration_loss;
mod migration_rules;
mod node_life;
mod node_loss;
mod node_service;
mod pending;
mod placement;
mod prefetch;
mod provision;
mod remains;
mod restart;
mod schedule;
mod spare;
mod taken_up;
mod unrecorded;
mod upgrade;
mod world;
