//! The source is asked for its state (MGR-01). Nothing is begun or bound by it.

use greenroom_types::Payload;
use greenroom_types::stream::MigrationSignal;

use super::{Handover, Output, Request, Stage};

// === impl Handover ===

impl Handover {
    pub(super) fn apply_get_state(&mut self, out: &mut Vec<Output>) {
        match (self.stage, &self.open) {
            // Asked again, as by a Manager that does not know that it asked.
            (Stage::Begun, Some(Request::GetState)) => {}
            (Stage::Begun, _) => self.ask(Request::GetState, out),
            _ => self.out_of_order(out),
        }
    }

    pub(super) fn state_told(&mut self, payload: Payload, out: &mut Vec<Output>) {
        self.close();
        self.stage = Stage::Proposed;
        out.push(Output::Tell(MigrationSignal::State(payload)));
    }

    pub(super) fn state_refused(&mut self, reason: String, out: &mut Vec<Output>) {
        self.close();
        self.stage = Stage::GivenUp;
        out.push(Output::Tell(MigrationSignal::Refused(reason)));
    }
}
