//! The engine, requirement by requirement, and against an oracle written another way.

mod build;
mod buying;
mod filter;
mod fleet;
mod gpu;
mod intra;
mod model;
mod offer;
mod oracle;
mod ports;
mod rank;
mod reservation;
mod resilience;
mod same;
mod tiers;
mod trace;
mod validate;
