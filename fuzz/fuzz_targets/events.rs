//! What clients read from the event stream and from answers of the reading calls.
#![no_main]

use greenroom_fuzz::{decode, pieces};
use greenroom_proto::convert::stream;
use greenroom_proto::{common, manager, worker};
use greenroom_types::bundle::BundleStatus;
use greenroom_types::discovery::DiscoveryFleet;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::JobWithHistory;
use greenroom_types::node::{NodeInfo, RunningJob};
use libfuzzer_sys::fuzz_target;

fn read<Wire, Ours>(bytes: &[u8])
where
    Wire: prost::Message + Default,
    Ours: TryFrom<Wire>,
{
    if let Some(message) = decode::<Wire>(bytes) {
        let _ = Ours::try_from(message);
    }
}

fuzz_target!(|input: &[u8]| {
    for (kind, bytes) in pieces(input) {
        match kind % 8 {
            0 => {
                if let Ok(decoded) = stream::decode(bytes) {
                    // What was read can be told.
                    let _ = format!("{decoded:?}");
                }
            }
            1 => read::<manager::NodeInfo, NodeInfo>(bytes),
            2 => read::<manager::BundleStatus, BundleStatus>(bytes),
            3 => read::<common::NodeInventory, NodeInventory>(bytes),
            4 => read::<manager::JobWithHistory, JobWithHistory>(bytes),
            5 => read::<manager::RunningJob, RunningJob>(bytes),
            6 => read::<manager::DiscoveryFleet, DiscoveryFleet>(bytes),
            _ => {
                if let Some(order) = decode::<worker::WorkerJob>(bytes) {
                    let _ = greenroom_proto::convert::worker::StartOrder::try_from(order);
                }
            }
        }
    }
});
