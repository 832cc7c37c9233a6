//! The source ends its output, at the point that the target named or later (MGR-02).

use greenroom_types::Payload;
use greenroom_types::stream::MigrationSignal;

use super::{Handover, Output, Request, Stage};

// === impl Handover ===

impl Handover {
    pub(super) fn apply_stop_output(&mut self, at: Payload, out: &mut Vec<Output>) {
        match self.stage {
            Stage::Begun | Stage::Proposed => {
                self.stage = Stage::Stopping;
                self.ask(Request::StopOutput(at), out);
            }
            // Ordered again: it is under way, or was told already.
            Stage::Stopping | Stage::Stopped => {}
            _ => self.out_of_order(out),
        }
    }

    pub(super) fn output_stopped(&mut self, payload: Payload, out: &mut Vec<Output>) {
        self.close();
        self.stage = Stage::Stopped;
        out.push(Output::Tell(MigrationSignal::SourceStoppedOutput(payload)));
    }
}
