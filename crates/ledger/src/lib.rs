//! The Manager's replicated state machine: commands in, outcome, events and orders out. Pure
