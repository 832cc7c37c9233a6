//! The binary as people use it: real processes on free ports and temporary folders, looked at through
//! what it prints and through the event stream.
//!
//! Nothing sleeps to let something happen: tests wait for a line, an event, or the end of a process.

mod absent;
mod air;
mod asleep;
mod audit;
mod bundles;
mod control;
mod ctl;
mod demo;
mod faults;
mod fleet;
mod handover;
mod harness;
mod installation;
mod leases;
mod manifests;
mod moves;
mod notices;
mod operator;
mod processes;
mod secure;
mod stall;
mod store;
mod tools;
