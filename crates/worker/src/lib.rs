//! The agent on each node: runtimes, inventory, capacity, journal
