//! Requests of every changing call, decoded, converted and applied to a ledger with something in it.
//! A refusal changes nothing, and the rows rebuild the state.
#![no_main]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use greenroom_fuzz::{pieces, request};
use greenroom_ledger::{
    Called, Command, Config, Fresh, Hello, HelloInstance, Ledger, Open, Register, Report, Row,
};
use greenroom_types::call::{Call, InstanceRef, Reply, StartJob};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::node::{InstanceKey, InstanceState};
use greenroom_types::{StartId, Wall};
use libfuzzer_sys::fuzz_target;

type Rows = BTreeMap<(String, String), String>;

struct World {
    ledger: Ledger,
    rows: Rows,
    drawn: u64,
}

impl World {
    fn apply(&mut self, command: Command) -> Option<Reply> {
        // Whatever passes must be able to stand in the log.
        let command = command.checked().ok()?;
        let text = serde_json::to_string(&command).expect("a checked command can be written");
        let command: Command = serde_json::from_str(&text).expect("and read again");
        let before = self.ledger.clone();
        self.drawn += 1;
        let at = Wall(1_767_225_600_000 + i64::try_from(self.drawn).expect("a small number"));
        let applied = self.ledger.apply(at, command);
        if applied.outcome.is_err() {
            assert_eq!(before, self.ledger, "a refusal changed the state");
        }
        for row in applied.rows {
            let key = (row.table.to_owned(), row.key);
            match row.value {
                Some(value) => self.rows.insert(key, value),
                None => self.rows.remove(&key),
            };
        }
        applied.outcome.ok()
    }

    fn call(&mut self, call: Call) -> Option<Reply> {
        let id = format!("{:032x}", self.drawn + 1);
        self.apply(Command::Call(Box::new(Called {
            call,
            actor: "fuzz".to_owned(),
            request_id: None,
            fresh: Fresh {
                token: format!("token-{id}"),
                id,
                ..Fresh::default()
            },
        })))
    }

    fn check(&self) {
        let rows = self.rows.iter().map(|((table, key), value)| Row {
            table: table.clone(),
            key: key.clone(),
            value: value.clone(),
        });
        let loaded = Ledger::load(rows).expect("the rows can be read");
        assert_eq!(loaded, self.ledger, "the rows rebuild the state");
    }
}

fn job(id: &str) -> greenroom_types::job::Job {
    greenroom_testkit::job(id)
}

static SEED: LazyLock<(Ledger, Rows, u64)> = LazyLock::new(|| {
    let mut world = World {
        ledger: Ledger::new(Config::default()),
        rows: Rows::new(),
        drawn: 0,
    };
    let open = Open {
        epoch: "e".to_owned(),
        renew: false,
        config: Some(Box::new(Config::default())),
        generation: 1,
    };
    world.apply(Command::Open(open));
    let slot = world.call(Call::RegisterClusterNode {
        node_name: "n".to_owned(),
        pool: "own".into(),
    });
    let Some(Reply::Slot { token, .. }) = slot else {
        panic!("{slot:?}");
    };
    world.apply(Command::Register(Register {
        token,
        address: "10.0.0.1:1".to_owned(),
        machine_id: "m".to_owned(),
        public_key: "p".to_owned(),
        key: "k".to_owned(),
        hardware: None,
    }));
    world.call(Call::CreateJob(Box::new(job("j"))));
    world.call(Call::CreateBundle(Box::new(greenroom_testkit::bundle(
        "b",
        &["a", "c"],
    ))));
    let stray: StartId = "f".repeat(32).parse().expect("a start id");
    let hello = Hello {
        protocol_minor: 10,
        inventory: Some(Box::new(NodeInventory::default())),
        instances: vec![HelloInstance {
            instance: InstanceRef {
                key: InstanceKey::new("j".into(), "backup".into()),
                start_id: stray,
            },
            state: InstanceState::Running,
            ports: BTreeMap::new(),
            fence: 0,
        }],
        ..Hello::default()
    };
    // As after a restore, so that there is something to adopt.
    world.apply(Command::Open(Open {
        epoch: "f".to_owned(),
        renew: true,
        config: None,
        generation: 2,
    }));
    world.apply(Command::Report {
        node_id: "n".into(),
        report_id: 0,
        report: Box::new(Report::Hello(Box::new(hello))),
    });
    let start: StartJob = greenroom_testkit::start("j", "n");
    world.call(Call::StartJob(start));
    world.check();
    (world.ledger, world.rows, world.drawn)
});

fuzz_target!(|input: &[u8]| {
    let (ledger, rows, drawn) = SEED.clone();
    let mut world = World {
        ledger,
        rows,
        drawn,
    };
    for (number, bytes) in pieces(input) {
        let Some(request) = request(number, bytes) else {
            continue;
        };
        if let Ok(call) = Call::try_from(request) {
            world.call(call);
        }
    }
    world.check();
});
