//! What an instance is run with: the settings tree, and what cannot be written in a file.
//!
//! The tree has the keys of policy.md and is checked by the policy itself (CONF-01); this file adds
//! no key of its own. Reading YAML and files is the program's.

use std::fmt;
use std::sync::{Arc, Mutex};

use greenroom_sdk::Access;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::acts::Unkept;
use crate::callbacks::{Callbacks, NoCallbacks};
use crate::clock::{Clock, SystemClock};
use crate::seat::Gate;

/// Everything that [`crate::AutoManager::run`] needs (CONF).
#[derive(Clone)]
pub struct Settings {
    /// The settings with the keys of policy.md; `url` is the only one required (CONF-02).
    pub tree: Value,
    /// How the Manager is recognised, and who the control plane is.
    pub access: Access,
    /// Called back on the loop's own sequence.
    pub callbacks: Arc<dyn Callbacks>,
    /// Fired before the connection stands it makes `run` fail, later it is `close()` (LIFE-01).
    pub signal: CancellationToken,
    /// Default: the system's clocks (TIME-05).
    pub clock: Arc<dyn Clock>,
    /// Seed of all random ids; none: from the system's randomness (TIME-05).
    pub seed: Option<u64>,
    /// Whether decisions carry their trace. Switched off they cost less, and
    /// [`crate::AutoManager::explain`] of a placed job has no trace.
    pub traces: bool,
    /// What an instance of these settings ended without having kept (ACTS-07).
    pub(crate) unkept: Arc<Mutex<Option<Unkept>>>,
    /// The right to act, where it is one of several (ACTIVE).
    pub(crate) gate: Option<Gate>,
}

// === impl Settings ===

impl Settings {
    /// These settings, without callbacks, on the system's clocks.
    #[must_use]
    pub fn new(tree: Value) -> Self {
        Self {
            tree,
            access: Access::default(),
            callbacks: Arc::new(NoCallbacks),
            signal: CancellationToken::new(),
            clock: Arc::new(SystemClock::new()),
            seed: None,
            traces: true,
            unkept: Arc::default(),
            gate: None,
        }
    }

    /// With these callbacks.
    #[must_use]
    pub fn with_callbacks(mut self, callbacks: impl Callbacks) -> Self {
        self.callbacks = Arc::new(callbacks);
        self
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("tree", &self.tree)
            .field("seed", &self.seed)
            .field("traces", &self.traces)
            .finish_non_exhaustive()
    }
}
