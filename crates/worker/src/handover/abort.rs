//! Back to where things were: the source outputs again, the target forgets (SOCK-13, MGR-06).
//!
//! An abort wins over whatever is under way. The job is told even when it comes back late, since a
//! source that ended its output must begin it again.

use super::{Handover, Output, Request, Stage};

// === impl Handover ===

impl Handover {
    /// The Manager takes the migration back.
    pub(super) fn apply_abort(&mut self, reason: String, out: &mut Vec<Output>) {
        // The job was told already, or has nothing to take back.
        if self.stage == Stage::GivenUp {
            return;
        }
        self.stage = Stage::GivenUp;
        self.tell_abort(reason, out);
    }

    /// The job or the worker gives up: the Manager is told, and the job is to go back.
    pub(super) fn give_up(&mut self, reason: &str, out: &mut Vec<Output>) {
        if self.stage == Stage::GivenUp {
            return;
        }
        out.push(self.aborted(reason));
        // It has done its part. Whether it is to be taken back depends on the other side, which the
        // Manager's side knows.
        if matches!(self.stage, Stage::Stopped | Stage::Applied) {
            return;
        }
        // A source that did nothing yet has nothing to take back.
        let untouched = matches!(self.stage, Stage::Begun | Stage::Proposed);
        self.stage = Stage::GivenUp;
        if untouched && !self.live.speaker {
            self.close();
        } else {
            self.tell_abort(reason.to_owned(), out);
        }
    }

    fn tell_abort(&mut self, reason: String, out: &mut Vec<Output>) {
        self.close();
        self.open = Some(Request::Abort(reason));
        if self.live.speaker {
            self.deliver(out);
        }
    }
}
