//! What must be true of a command before it is proposed, whatever the state.
//!
//! The log holds commands as JSON, which has no NaN and no infinity; an entry that cannot be read
//! again would stop every later start. So numbers are looked at before they get there.

use greenroom_types::bundle::Bundle;
use greenroom_types::call::{Call, Refusal};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::Job;

use crate::command::Command;
use crate::refuse::invalid;
use crate::report::Report;

// === impl Command ===

impl Command {
    /// The command as it may be proposed: a call with a number that is none is refused (LIM-03), in
    /// a worker's picture such a number becomes 0 (MNODE-20).
    pub fn checked(mut self) -> Result<Self, Refusal> {
        match &mut self {
            Self::Call(called) => check_call(&called.call)?,
            Self::Register(register) => {
                if let Some(hardware) = &mut register.hardware {
                    sanitise(hardware);
                }
            }
            Self::Report { report, .. } => match &mut **report {
                Report::Hello(hello) => {
                    if let Some(inventory) = &mut hello.inventory {
                        sanitise(inventory);
                    }
                }
                Report::Inventory(inventory)
                | Report::Rejected {
                    inventory: Some(inventory),
                    ..
                } => sanitise(inventory),
                _ => {}
            },
            Self::Open(_)
            | Self::Link { .. }
            | Self::Provider { .. }
            | Self::Tick(_)
            | Self::Overrides(_)
            | Self::Note { .. } => {}
        }
        Ok(self)
    }
}

fn sanitise(inventory: &mut NodeInventory) {
    *inventory = std::mem::take(inventory).sanitised().0;
}

fn check_call(call: &Call) -> Result<(), Refusal> {
    match call {
        Call::CreateJob(job) | Call::UpdateJob(job, _) => check_job(job),
        Call::CreateBundle(bundle) | Call::UpdateBundle { bundle, .. } => check_bundle(bundle),
        Call::CreateOciNode(node) => {
            finite("ocpus", node.ocpus.unwrap_or_default())?;
            finite("memory_gb", node.memory_gb.unwrap_or_default())
        }
        _ => Ok(()),
    }
}

fn check_job(job: &Job) -> Result<(), Refusal> {
    let Some(placement) = &job.auto_placement else {
        return Ok(());
    };
    let needs = &placement.requirements;
    finite(
        "auto_placement.requirements.required_capacity",
        needs.required_capacity,
    )?;
    finite(
        "auto_placement.requirements.required_gpu_capacity",
        needs.required_gpu_capacity,
    )
}

fn check_bundle(bundle: &Bundle) -> Result<(), Refusal> {
    for (index, job) in bundle.jobs.iter().enumerate() {
        let needs = &job.requirements;
        let amounts = [
            ("required_capacity", needs.required_capacity),
            ("required_gpu_capacity", needs.required_gpu_capacity),
        ];
        for (name, amount) in amounts {
            finite(&format!("jobs[{index}].requirements.{name}"), amount)?;
        }
    }
    Ok(())
}

fn finite(path: &str, number: f64) -> Result<(), Refusal> {
    if number.is_finite() {
        return Ok(());
    }
    Err(invalid("bad_value", format!("{path} must be a finite number")).with("path", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Called, Fresh};
    use greenroom_types::bundle::BundleJob;

    // spec: LIM-03
    #[test]
    fn a_number_that_is_none_reaches_no_log() {
        for number in [f64::NAN, f64::INFINITY] {
            let mut job = BundleJob::default();
            job.requirements.required_capacity = number;
            let bundle = Bundle {
                jobs: vec![BundleJob::default(), job],
                ..Bundle::default()
            };
            let refusal = Command::Call(Box::new(Called {
                call: Call::CreateBundle(Box::new(bundle)),
                actor: String::new(),
                request_id: None,
                fresh: Fresh::default(),
            }))
            .checked()
            .unwrap_err();
            assert_eq!(refusal.reason, "bad_value");
            assert_eq!(
                refusal.details["path"],
                "jobs[1].requirements.required_capacity".into()
            );
        }
    }

    // spec: MNODE-20
    #[test]
    fn a_picture_reaches_the_log_with_usable_numbers() {
        let picture = NodeInventory {
            total_capacity: f64::NAN,
            ..NodeInventory::default()
        };
        let command = Command::Report {
            node_id: "n".into(),
            report_id: 0,
            report: Box::new(Report::Inventory(Box::new(picture))),
        }
        .checked()
        .unwrap();
        let text = serde_json::to_string(&command).unwrap();
        assert_eq!(serde_json::from_str::<Command>(&text).unwrap(), command);
    }
}
