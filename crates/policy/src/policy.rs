//! The policy itself: one state, one entry for all inputs.

use greenroom_types::Now;

use crate::effect::{Callback, Effects};
use crate::event::Event;
use crate::ids::IdSource;
use crate::settings::Settings;
use crate::timer::{Deadline, TimerTable};

/// The AutoManager core.
#[derive(Debug)]
pub struct Policy {
    settings: Settings,
    ids: IdSource,
    timers: TimerTable,
}

// === impl Policy ===

impl Policy {
    /// A fresh instance that has not seen the Manager yet.
    pub fn new(settings: Settings, now: Now, ids: IdSource) -> Self {
        let mut timers = TimerTable::default();
        timers.look(now);
        Self {
            settings,
            ids,
            timers,
        }
    }

    /// Takes one event and adds everything that must follow from it to `out`, in order.
    pub fn handle(&mut self, now: Now, event: Event, out: &mut Effects) {
        self.timers.look(now);
        if let Event::ConnectionState(state) = event {
            out.callback(Callback::OnConnectionStateChange { state });
        }
    }

    /// The earliest moment at which time alone may change something.
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.timers.next()
    }

    /// The settings in force.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }
}
