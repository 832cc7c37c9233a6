//! Virtual time, simulated workers and network, the scenario runner
