//! The target says by itself that it can take over, once in a migration (MGR-04).

use greenroom_types::Payload;
use greenroom_types::stream::MigrationSignal;

use super::{At, Handover, Output, Side, Stage};

// === impl Handover ===

impl Handover {
    pub(super) fn apply_ready(&mut self, at: At, payload: Payload, out: &mut Vec<Output>) {
        match (self.side, self.stage) {
            (Side::Target, Stage::Waiting) => {
                self.stage = Stage::Ready;
                self.known_to_job = true;
                out.push(Output::Tell(MigrationSignal::TargetReady(payload)));
            }
            // A repeat, or too late to matter.
            (Side::Target, _) => {}
            (Side::Source, _) => out.push(Output::Refuse {
                at,
                code: "wrong_migration",
                expected: self.expected(),
            }),
        }
    }
}
