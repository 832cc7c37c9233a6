//! Node services: what they make the node able to do, and where they are reached (WORK-43).

use std::collections::BTreeMap;

use greenroom_types::Role;
use greenroom_types::inventory::Capability;

use super::{Agent, Instance, Phase};
use crate::launch::HOST_ALIAS;
use crate::order::StartSpec;
use crate::spec::RuntimeKind;

/// Attribute of a provided capability that says where it is reached, instead of a port.
const ADDRESS: &str = "address";

// === impl Instance ===

impl Instance {
    /// It makes its node able to do something now.
    fn provides(&self) -> bool {
        self.ready
            && self.phase == Phase::Running
            && self.spec.key.role.slot() == Role::NODE_SERVICE
    }
}

// === impl Agent ===

impl Agent {
    /// What node services make the node able to do now. It is over with the first step of their end,
    /// before anything of them is stopped.
    pub(crate) fn provided(&self) -> Vec<Capability> {
        let services = self.instances.values().filter(|it| it.provides());
        services
            .flat_map(|instance| instance.spec.provided.iter().cloned())
            .collect()
    }

    /// Where the capabilities that an instance requires are reached, for those that node services
    /// provide: at the address that the capability names, else at the service's first port.
    pub(crate) fn addresses(&self, spec: &StartSpec) -> BTreeMap<String, String> {
        let mut addresses = BTreeMap::new();
        for wanted in &spec.requirements.required_capabilities {
            let found = self
                .instances
                .iter()
                .filter(|(_, instance)| instance.provides())
                .find_map(|(start_id, instance)| {
                    let mut provided = instance.spec.provided.iter();
                    let capability = provided.find(|it| it.name == wanted.name)?;
                    let named = capability.attributes.get(ADDRESS).cloned();
                    named.or_else(|| self.first_port(start_id))
                });
            if let Some(address) = found {
                addresses.insert(wanted.name.clone(), address);
            }
        }
        addresses
    }

    fn first_port(&self, start_id: &greenroom_types::StartId) -> Option<String> {
        let mapped = self.room.of(start_id)?.ports.mapped.first()?;
        let host = match (mapped.host_address.as_str(), self.settings.runtime) {
            ("" | "0.0.0.0" | "::", RuntimeKind::Docker) => HOST_ALIAS,
            ("" | "0.0.0.0" | "::", RuntimeKind::Process) => "127.0.0.1",
            (address, _) => address,
        };
        Some(format!("{host}:{}", mapped.claim.port))
    }
}

#[cfg(test)]
mod tests {
    use greenroom_types::inventory::{Gpu, NodeInventory};
    use greenroom_types::node::{InstanceKey, RejectionCode};

    use super::*;
    use crate::agent::tests::{Play, short, spec};
    use crate::agent::{Event, FoundState, RuntimeEvent};
    use crate::order::StopCause;

    fn sdi(count: u32) -> Capability {
        Capability {
            name: "sdi-in".to_owned(),
            count,
            ..Capability::default()
        }
    }

    fn service(start_id: &str) -> StartSpec {
        let mut service = spec("cards.1", start_id);
        service.key = InstanceKey::new("cards.1".into(), Role::NODE_SERVICE.into());
        service.provided = vec![sdi(2)];
        service
    }

    fn consumer(start_id: &str, count: u32) -> StartSpec {
        let mut consumer = spec(start_id, start_id);
        consumer.requirements.required_capabilities = vec![sdi(count)];
        consumer
    }

    // spec: WORK-43, WORK-30
    #[test]
    fn a_node_service_provides_while_it_runs_and_is_healthy() {
        let mut play = Play::new();
        let acts = play.provision(&consumer("s9", 1));
        assert_eq!(short(&acts), ["say s9 rejected Capability"]);
        play.run(&service("s1"));
        assert_eq!(play.agent.picture().provided, []);
        play.runtime("s1", RuntimeEvent::Ready(true));
        assert_eq!(play.agent.picture().provided, [sdi(2)]);

        let acts = play.provision(&consumer("s2", 2));
        assert_eq!(short(&acts), ["say s2 accepted", "prepare s2"]);
        let acts = play.provision(&consumer("s3", 1));
        assert_eq!(short(&acts), ["say s3 rejected Capability"]);
        let picture = play.agent.picture();
        assert_eq!(picture.reserved_capabilities, [sdi(2)]);

        // Not while one of its services is started again.
        play.runtime("s1", RuntimeEvent::Ready(false));
        assert_eq!(play.agent.picture().provided, []);
        play.runtime("s1", RuntimeEvent::Ready(true));
        assert_eq!(play.agent.picture().provided, [sdi(2)]);
        // Those that use it are not touched when it fails.
        let acts = play.runtime("s1", RuntimeEvent::Failing("no".to_owned()));
        assert_eq!(short(&acts), ["say s1 failed no"]);
        assert_eq!(play.agent.picture().provided, []);
    }

    // spec: WORK-43
    #[test]
    fn what_it_provided_is_gone_when_its_stop_is_begun_and_comes_back_with_the_worker() {
        let mut play = Play::new();
        play.run(&service("s1"));
        play.runtime("s1", RuntimeEvent::Ready(true));
        let (mut play, _) = play.restart("boot-1", &[("s1", FoundState::Running)]);
        assert_eq!(play.agent.picture().provided, []);
        play.runtime("s1", RuntimeEvent::Ready(true));
        assert_eq!(play.agent.picture().provided, [sdi(2)]);
        let stop = crate::order::Order::Stop {
            key: service("s1").key,
            start_id: None,
            grace: greenroom_types::Millis(5),
            cause: StopCause::User,
        };
        assert_eq!(short(&play.tell(Event::Order(stop))), ["stop s1 5ms"]);
        assert_eq!(play.agent.picture().provided, []);
    }

    // spec: WORK-43
    #[test]
    fn only_an_instance_of_the_role_for_it_provides() {
        let mut play = Play::new();
        let mut other = spec("j", "s1");
        other.provided = vec![sdi(1)];
        play.run(&other);
        play.runtime("s1", RuntimeEvent::Ready(true));
        assert_eq!(play.agent.picture().provided, []);
    }

    // spec: WORK-43
    #[test]
    fn who_requires_it_is_told_where_it_is() {
        let mut play = Play::new();
        let wanted = consumer("s2", 1);
        play.run(&service("s1"));
        assert_eq!(play.agent.addresses(&wanted), BTreeMap::new());
        play.runtime("s1", RuntimeEvent::Ready(true));
        let address = |play: &Play| play.agent.addresses(&wanted)["sdi-in"].clone();
        let port = play.agent.room.of(&"s1".into()).unwrap().ports.mapped[0]
            .claim
            .port;
        assert_eq!(address(&play), format!("127.0.0.1:{port}"));
        play.agent.settings.runtime = RuntimeKind::Docker;
        assert_eq!(address(&play), format!("{HOST_ALIAS}:{port}"));
        assert_eq!(play.agent.addresses(&spec("k", "s3")), BTreeMap::new());

        let mut play = Play::new();
        let mut named = service("s1");
        let socket = ("address".to_owned(), "unix:/run/sdi.sock".to_owned());
        named.provided[0].attributes = [socket].into();
        play.run(&named);
        play.runtime("s1", RuntimeEvent::Ready(true));
        assert_eq!(address(&play), "unix:/run/sdi.sock");
    }

    // spec: WORK-44, HARDM-53, WORK-32
    #[test]
    fn the_last_share_of_a_device_is_given_once_and_a_device_that_vanished_not_at_all() {
        let mut play = Play::new();
        let gpu = Gpu {
            index: 0,
            uuid: "GPU-1".to_owned(),
            capacity: 1.0,
            ..Gpu::default()
        };
        let base = play.agent.picture();
        let machine = |gpus: Vec<Gpu>| {
            Event::Machine(Box::new(NodeInventory {
                gpus,
                ..base.clone()
            }))
        };
        play.tell(machine(vec![gpu]));
        let half = |id: &str| {
            let mut half = spec(id, id);
            half.requirements.required_gpu_capacity = 0.6;
            half
        };
        play.run(&half("s1"));
        let acts = play.provision(&half("s2"));
        assert_eq!(short(&acts), ["say s2 rejected Gpu"]);
        // The inventory that goes with it shows why.
        let picture = play.agent.picture();
        assert_eq!(picture.gpus[0].reserved_capacity, 0.6);
        assert_eq!(picture.assigned_jobs[0].gpu_index, Some(0));

        // It falls off the bus: it is in no picture, and nothing is said of who used it.
        assert_eq!(play.tell(machine(Vec::new())), []);
        assert_eq!(play.agent.picture().gpus, []);
        let last = play.agent.outbox().waiting().last().unwrap();
        let rejected = matches!(&last.said, crate::order::Said::Rejected { code, .. }
            if *code == RejectionCode::Gpu);
        assert!(rejected, "{last:?}");
        let mut any = half("s3");
        any.requirements.required_gpu_capacity = 0.1;
        assert_eq!(short(&play.provision(&any)), ["say s3 rejected Gpu"]);
        let acts = play.runtime("s1", RuntimeEvent::Failing("CUDA error".to_owned()));
        assert_eq!(short(&acts), ["say s1 failed CUDA error"]);
    }

    // spec: WORK-44
    #[test]
    fn a_disk_that_vanished_is_in_no_picture_and_ends_no_job() {
        let mut play = Play::new();
        play.run(&spec("j", "s1"));
        let gone = NodeInventory {
            disks: Vec::new(),
            ..play.agent.picture()
        };
        assert_eq!(play.tell(Event::Machine(Box::new(gone))), []);
        assert_eq!(play.agent.picture().disks, []);
        assert_eq!(play.agent.instances().count(), 1);
    }
}
