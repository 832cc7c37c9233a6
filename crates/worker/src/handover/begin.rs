//! The target begins its output where the source ended (MGR-03).

use greenroom_types::Payload;
use greenroom_types::stream::MigrationSignal;

use super::{Handover, Output, Request, Stage};

// === impl Handover ===

impl Handover {
    pub(super) fn apply_begin(&mut self, at: Payload, out: &mut Vec<Output>) {
        match self.stage {
            Stage::Ready => {
                self.stage = Stage::Beginning;
                self.ask(Request::Begin(at), out);
            }
            // Ordered again: it is under way, or was told already.
            Stage::Beginning | Stage::Applied => {}
            _ => self.out_of_order(out),
        }
    }

    pub(super) fn output_begun(&mut self, payload: Payload, out: &mut Vec<Output>) {
        self.close();
        self.stage = Stage::Applied;
        out.push(Output::Tell(MigrationSignal::TargetApplied(payload)));
    }
}
