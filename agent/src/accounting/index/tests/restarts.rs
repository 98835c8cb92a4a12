//! The cgroup index over maps in memory, with an agent that dies between any two operations on them.

mod world;

use proptest::prelude::*;

use crate::kernel::accounts::fold::is_constant;
use world::{Cgroup, SLOTS, World};

/// An event. Numbers choose among the present pods.
#[derive(Debug, Clone)]
enum Step {
    Pod(usize),
    Container(usize),
    Nested(usize),
    Use(usize, u64),
    Remove {
        which: usize,
        dies_after: Option<u32>,
    },
    RemoveUnseen(usize),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = 0..1000_usize;
    let step = prop_oneof![
        2 => any.clone().prop_map(Step::Pod),
        3 => any.clone().prop_map(Step::Container),
        2 => any.clone().prop_map(Step::Nested),
        8 => (any.clone(), 1..1000_u64).prop_map(|(which, ns)| Step::Use(which, ns)),
        3 => (any.clone(), prop::option::weighted(0.7, 0..12_u32))
            .prop_map(|(which, dies_after)| Step::Remove { which, dies_after }),
        1 => any.prop_map(Step::RemoveUnseen),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..80)
}

fn choose(world: &World, which: usize, fits: impl Fn(&Cgroup) -> bool) -> Option<u64> {
    let found: Vec<u64> = world
        .tree
        .iter()
        .filter(|(_, cgroup)| fits(cgroup))
        .map(|(id, _)| *id)
        .collect();
    found.get(which.checked_rem(found.len())?).copied()
}

fn take(world: &mut World, step: &Step) {
    let name = |world: &World, prefix: &str| format!("{prefix}{}", world.next);
    match *step {
        Step::Pod(which) => {
            let above = choose(world, which, |c| {
                c.depth == 0 || (c.depth == 1 && c.pod.is_none())
            });
            world.make(above.expect("the root"), name(world, "podu"));
        }
        Step::Container(which) => {
            if let Some(pod) = choose(world, which, |c| c.pod.is_some() && c.container.is_none()) {
                world.make(pod, name(world, "c"));
            }
        }
        Step::Nested(which) => {
            if let Some(container) = choose(world, which, |c| c.container.is_some()) {
                world.make(container, name(world, "n"));
            }
        }
        Step::Use(which, ns) => {
            let id = choose(world, which, |_| true).expect("the root");
            world.use_some(id, ns);
            world.look();
        }
        Step::Remove { which, dies_after } => {
            if let Some(id) = choose(world, which, |c| c.pod.is_some()) {
                let gone = world.remove(id);
                world.hear_of(&gone, dies_after);
            }
        }
        Step::RemoveUnseen(which) => {
            if let Some(id) = choose(world, which, |c| c.pod.is_some()) {
                world.remove(id);
                world.start();
            }
        }
        Step::Restart => world.start(),
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_nor_counted_twice_whenever_the_agent_dies(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            take(&mut world, step);
        }
        // Everybody goes, and one more agent comes.
        let pods: Vec<u64> = world.tree.iter().filter(|(_, c)| c.container.is_none() && c.pod.is_some())
            .map(|(id, _)| *id).collect();
        for pod in pods {
            let gone = world.remove(pod);
            world.hear_of(&gone, None);
        }
        world.start();
        world.hear_of(&[], None);
        prop_assert_eq!(world.kernel.tables.tracked.len(), 3, "kubepods and its tiers");
        prop_assert!(world.kernel.tables.records.keys().all(|key| is_constant(*key)));
        prop_assert_eq!(world.kernel.tables.free.len(), SLOTS as usize - 4);
    }
}
