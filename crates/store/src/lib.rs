//! The durable engine around the ledger: log, state, snapshots, backups
