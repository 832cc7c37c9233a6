//! The job comes, goes, comes back, or takes too long (SOCK-10, SOCK-12, MGR-07).

use greenroom_types::stream::MigrationSignal;
use greenroom_types::{MigrationId, Millis};

use super::{Alarm, Extension, Handover, Output, Request, Stage};

// === impl Handover ===

impl Handover {
    /// Somebody speaks for the job. Whoever does not know the migration that the job was in is not the
    /// one that is waited for, but must hear that it is over.
    pub(super) fn apply_speaker(&mut self, named: Option<&MigrationId>, out: &mut Vec<Output>) {
        let ends = matches!(self.open, Some(Request::Abort(_)));
        if self.known_to_job && named != Some(&self.migration_id) && !ends {
            self.live.speaker = false;
            if self.awaits_job() {
                self.ensure_away_alarm(out);
            }
            return;
        }
        self.live.speaker = true;
        self.live.away_alarm = None;
        self.deliver(out);
    }

    pub(super) fn apply_silent(&mut self, out: &mut Vec<Output>) {
        self.live.speaker = false;
        // Before a target has said a word it may come and go; its start has its own deadlines.
        if self.awaits_job() && self.known_to_job {
            self.ensure_away_alarm(out);
        }
    }

    /// Nobody came (back) in time.
    pub(super) fn apply_away(&mut self, number: u64, out: &mut Vec<Output>) {
        if self.live.away_alarm != Some(number) {
            return;
        }
        self.live.away_alarm = None;
        if !self.awaits_job() {
            return;
        }
        match (self.known_to_job, &self.open) {
            (false, Some(Request::GetState)) => {
                self.close();
                self.stage = Stage::GivenUp;
                let refused = MigrationSignal::Refused("not_connected".to_owned());
                out.push(Output::Tell(refused));
            }
            (false, _) => self.give_up("not_connected", out),
            (true, _) => self.give_up("socket_lost", out),
        }
    }

    /// The open request was not answered in time. It has a second term where the job asked for one.
    pub(super) fn apply_late(&mut self, number: u64, term: Millis, out: &mut Vec<Output>) {
        if self.live.step_alarm != Some(number) {
            return;
        }
        if self.live.extension == Extension::Asked {
            self.live.extension = Extension::Used;
            let number = self.next_alarm();
            self.live.step_alarm = Some(number);
            return out.push(Output::Alarm(Alarm::Step(number), term));
        }
        match self.open {
            // It has heard it, and that is all that can be done.
            Some(Request::Abort(_)) => self.close(),
            Some(_) => self.give_up("step_timeout", out),
            None => {}
        }
    }

    /// The instance ended by itself.
    pub(super) fn apply_death(&mut self, out: &mut Vec<Output>) {
        if self.awaits_job() {
            out.push(self.aborted("instance_died"));
        }
        self.stage = Stage::GivenUp;
        self.close();
    }

    /// The worker is there again and does not know who is connected (SOCK-19).
    pub(crate) fn resume(&mut self, out: &mut Vec<Output>) {
        if self.awaits_job() && (self.known_to_job || self.open.is_some()) {
            self.ensure_away_alarm(out);
        }
    }
}
