//! What a node offers: capabilities that stand on several entries, and numbers that make no sense.

use greenroom_types::inventory::{AssignedJob, Capability, NodeInventory};

use crate::build::*;

// spec: PLACE-10
#[test]
fn entries_of_one_name_count_for_the_needs_whose_attributes_they_meet() {
    let (duo, quad) = (&[("card", "duo")][..], &[("card", "quad")][..]);
    let sdi = |count, attributes| capability("sdi", count, attributes);
    let both = vec![sdi(1, duo), sdi(1, quad)];
    let cases: [(Vec<Capability>, u32, bool); 10] = [
        (vec![sdi(1, duo), sdi(1, quad)], 0, true),
        (vec![sdi(1, quad), sdi(1, duo)], 0, true),
        (vec![sdi(2, &[])], 0, true),
        (vec![sdi(1, duo), sdi(1, quad)], 1, false),
        // The quad is no duo, whatever there is in sum.
        (vec![sdi(1, duo), sdi(1, duo)], 0, false),
        (vec![sdi(2, duo)], 0, false),
        (vec![sdi(2, duo), sdi(0, quad)], 0, false),
        // Of a count of none only the attributes matter.
        (vec![sdi(0, duo)], 0, true),
        (vec![sdi(0, &[("card", "mono")])], 0, false),
        (vec![capability("ndi", 0, &[])], 0, true),
    ];
    for (needs, taken, expected) in cases {
        let mut world = World::new(vec![fixed("own")]);
        world.node("n", "own", 4.0);
        world.offers("n", |it| {
            it.capabilities = both.clone();
            it.reserved_capabilities = vec![sdi(taken, &[])];
        });
        let wants = with(job("e", 1.0), |job| {
            job.requirements.required_capabilities = needs.clone();
        });
        let goes = world.goes(&bundle("a", vec![wants]), "e");
        assert_eq!(goes == "n", expected, "{needs:?} with {taken} taken");
    }
}

// spec: PLACE-12
#[test]
fn each_number_that_makes_no_sense_is_made_usable_where_it_enters() {
    let changes: [fn(&mut NodeInventory, f64); 7] = [
        |it, wrong| it.utilization_cap = wrong,
        |it, wrong| it.total_capacity = wrong,
        |it, wrong| it.reserved_capacity = wrong,
        |it, wrong| it.gpus[0].capacity = wrong,
        |it, wrong| it.gpus[0].reserved_capacity = wrong,
        |it, wrong| it.assigned_jobs[0].capacity = wrong,
        |it, wrong| it.assigned_jobs[0].gpu_capacity = wrong,
    ];
    let plain = NodeInventory {
        gpus: vec![device(0, 1.0)],
        assigned_jobs: vec![AssignedJob::default()],
        ..offer(4.0)
    };
    let taken = |inventory: &NodeInventory| {
        let mut world = World::new(vec![fixed("own")]);
        world.node_of(POOL, "n", "own", inventory.clone());
        world.check();
        NodeInventory::clone(world.fleet.inventory(&id("n")).unwrap())
    };
    assert_eq!(taken(&plain), plain);
    for wrong in [-1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        let mut all = plain.clone();
        for (at, change) in changes.iter().enumerate() {
            let mut one = plain.clone();
            change(&mut one, wrong);
            if at > 0 {
                change(&mut all, wrong);
            }
            assert_eq!(taken(&one), one.sanitised().0, "{wrong} as number {at}");
        }
        assert_eq!(taken(&all), all.sanitised().0, "{wrong} in every amount");
    }
}
