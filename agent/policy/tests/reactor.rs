//! The reactor's laws together, on simulated nodes: pods and what is outside them fill memory, victims give it back
//! over time, shared memory comes back with teardown, and a simulated reactor decides with the functions
//! that the real one uses (`headroom`, `promise`, `worth`, `evict`).
//!
//! Properties:
//! - it never evicts a protected pod;
//! - at most one eviction is not needed: of all others one can say that without them, what had died before would not
//!   have brought the scope below its level;
//! - it acts at each crossing after which the hard limit is reached and one evictable pod could have prevented that, or
//!   has acted within the pace before it;
//! - the hard limit is not reached after a crossing at which one evictable pod that the rules let go first could have
//!   prevented that, or put it off for as long as the rest of the pause that it waits for, by what its processes held, freed as fast as victims are known to be, by what grew then: when
//!   teardown gives back shared memory, whether a process ever ends, and what begins to grow later, no reactor can
//!   foresee.
//!
//! The last three are judged by running the same node on from the same moment with other decisions.
//! `PROPTEST_CASES` asks for more nodes.

use proptest::{prelude::*, test_runner::RngSeed};

#[path = "support/sim.rs"]
mod sim;

use sim::{MIB, SECOND, Sim, SimPod};

/// Decisions other than the reactor's are followed this long: the pace of evictions where what grows cannot be
/// evicted.
const JUDGED: u64 = 10 * SECOND;

fn pod() -> impl Strategy<Value = SimPod> {
    let memory = (1_u64..512, 0_u64..100, 0_u64..256, 0_u8..3, -3_i32..4);
    let grows = prop_oneof![
        4 => Just((0, 0)),
        1 => (0_u64..3000, 0_u32..13),
    ];
    // In percent: most volumes are small, some pods are little else.
    let fate = (0_u8..10, 0_u64..40_000, 1_u64..8, 1_u64..2048);
    (memory, grows, fate).prop_map(|(memory, (after, power), (fate, teardown, slow, beyond))| {
        let (mib, shared, asked, class, priority) = memory;
        let usage = mib * MIB;
        let shared = if fate < 3 { usage / 100 * shared } else { 0 };
        SimPod::new(class, asked * MIB, priority, fate == 9)
            .holds(usage - shared, shared)
            .grows(
                if power == 0 { 0 } else { MIB << power },
                after * SECOND / 1000,
            )
            .until(usage + beyond * MIB)
            .dies(slow, teardown * SECOND / 1000, fate == 8 && slow == 7)
    })
}

fn node() -> impl Strategy<Value = Sim> {
    let pods = prop::collection::vec(pod(), 1..16);
    let outside = (0_u8..4, 0_u32..10, 1_u64..4096);
    (pods, outside, 1_u64..512, 64_u64..1024, 1_u64..=512).prop_map(
        |(pods, (grows, power, beyond), room, threshold, cpus)| {
            let rate = if grows == 0 { MIB << power } else { 0 };
            // What all CPUs may have charged ahead, twice, is no threshold.
            let threshold = threshold * MIB + cpus * (512 << 10);
            Sim::new(pods, rate, beyond * MIB, room * MIB, threshold, cpus)
        },
    )
}

fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig {
        max_shrink_iters: 200,
        cases: if asked { default.cases } else { 3_000 },
        // The same nodes each time, unless others are asked for.
        rng_seed: if asked {
            default.rng_seed
        } else {
            RngSeed::Fixed(15)
        },
        ..default
    }
}

/// Evictions without which what had died before would have sufficed.
fn needless(sim: &Sim) -> Vec<usize> {
    let judged = sim.evictions.iter().filter(|eviction| {
        let mut other = (*eviction.before).clone();
        !other.stays_short(JUDGED.max(sim::LONGEST_TEARDOWN))
    });
    judged.map(|eviction| eviction.victim).collect()
}

/// The pod among those that `may` go whose eviction at `moment` would have kept the node below its limit until `end`.
fn saviour(moment: &Sim, end: u64, may: impl Fn(&Sim, usize) -> bool) -> Option<usize> {
    let long = end.saturating_sub(moment.now);
    let saves =
        |index: &usize| may(moment, *index) && moment.clone().survives_without(*index, long);
    (0..moment.pods.len()).find(saves)
}

/// Until when one pod's death has to last so that it could have prevented what happened at `out_of_memory`: as long
/// beyond that as the pace lets the next one wait, or from the first crossing where that is less.
fn lasting(end: &Sim, moment: &Sim, out_of_memory: u64) -> u64 {
    let next = moment.now + JUDGED;
    let is_first = end
        .crossings
        .first()
        .is_some_and(|first| first.now == moment.now);
    match is_first && out_of_memory < next {
        true => next,
        false => out_of_memory + JUDGED,
    }
}

/// The crossings at which one pod that the rules let go first could have prevented what happened at `out_of_memory`.
fn missed(end: &Sim, out_of_memory: u64) -> Vec<(u64, usize)> {
    let found = end.crossings.iter().filter_map(|moment| {
        let until = lasting(end, moment, out_of_memory);
        Some((moment.now, saviour(moment, until, Sim::may_go_first)?))
    });
    found.collect()
}

/// The crossings after which it evicted none, although one evictable pod could have prevented what happened then. Where
/// it had evicted one within the pace before, it may wait: for what that one still holds, and where what grows is no
/// candidate also for the end of the pause, unless the death of one pod lasts as long as the pace.
fn slept_through(end: &Sim, out_of_memory: u64) -> Vec<(u64, usize)> {
    let since = |moment: &Sim| moment.now.saturating_sub(JUDGED);
    let acted = |moment: &Sim| {
        let mut evictions = end.evictions.iter();
        evictions.any(|e| e.before.now >= since(moment))
    };
    let moments = end.crossings.iter().filter(|moment| !acted(moment));
    let found = moments.filter_map(|moment| {
        let may = |sim: &Sim, index: usize| sim.pods[index].may_be_evicted();
        let until = lasting(end, moment, out_of_memory);
        Some((moment.now, saviour(moment, until, may)?))
    });
    found.collect()
}

/// The moments at which it waited for the end of a pause in which `out_of_memory` came, although the death of one pod
/// that the rules let go first would have put that off for as long as the rest of the pause.
fn waited_through(end: &Sim, out_of_memory: u64) -> Vec<(u64, usize)> {
    let paused = end
        .waits
        .iter()
        .filter(|moment| moment.now + moment.pause() > out_of_memory);
    let found = paused.filter_map(|moment| {
        let until = out_of_memory + moment.pause();
        Some((moment.now, saviour(moment, until, Sim::may_go_first)?))
    });
    found.collect()
}

/// The same node, on which all that a dead pod holds comes back with its processes, at the usual rate, and nothing
/// starts to grow later.
fn without_leftovers(mut sim: Sim) -> Sim {
    for pod in &mut sim.pods {
        *pod = pod.clone().leaves_nothing();
    }
    sim
}

/// A pod that holds so much and does not grow.
fn holds(class: u8, asked: u64, priority: i32, mib: u64) -> SimPod {
    SimPod::new(class, asked * MIB, priority, false)
        .holds(mib * MIB, 0)
        .until(mib * MIB)
}

/// A daemon fills 64 MiB/s, and two pods 32 MiB/s each. The smaller one grows as much as the larger one, whose death
/// lasts because it grows.
#[test]
fn a_pod_lasts_by_what_it_holds_and_what_it_would_fill() {
    let grows =
        |pod: SimPod, to: u64, after| pod.grows(32 * MIB, after * SECOND / 1000).until(to * MIB);
    let pods = vec![
        holds(1, 0, 0, 193),
        grows(holds(1, 0, 3, 1), 490, 0),
        holds(0, 0, -1, 73),
        grows(holds(0, 0, 0, 314), 1305, 1067),
        holds(0, 0, -2, 454)
            .grows(256 * MIB, 2727 * SECOND / 1000)
            .until(1720 * MIB),
        grows(holds(1, 187, 3, 503), 1601, 1181),
        holds(0, 0, -3, 169),
        holds(1, 215, -3, 487),
    ];
    let sim = Sim::new(
        pods,
        64 * MIB,
        1355 * MIB,
        27 * MIB,
        206 * MIB + (5 << 19),
        5,
    );
    let end = without_leftovers(sim).run(20);
    let at = end.out_of_memory;
    assert!(
        at.is_none_or(|at| missed(&end, at).is_empty()),
        "{at:?} of {:?}",
        end.history()
    );
}

/// A pod fills 298 MiB in 70 ms and then rests. Of the larger victim half is shared memory: what its processes hold is
/// free before the level is reached again.
#[test]
fn shared_memory_of_a_victim_does_not_lengthen_the_wait_for_its_processes() {
    let pods = vec![
        holds(0, 0, 0, 16).dies(3, 0, false),
        holds(0, 0, 2, 1),
        holds(2, 75, 0, 1).grows(4096 * MIB, 0).until(299 * MIB),
        SimPod::new(0, 0, 2, false)
            .holds(117_776_064, 108_716_352)
            .dies(5, 26 * SECOND, false),
        holds(0, 0, 2, 26).dies(7, 33 * SECOND, false),
    ];
    let end = Sim::new(
        pods,
        0,
        463 * MIB,
        382_730_240 - 339_738_624,
        412_614_656,
        219,
    )
    .run(20);
    assert!(
        needless(&end).len() <= 1,
        "{:?} of {:?}",
        needless(&end),
        end.history()
    );
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_right_pods_and_at_most_one_more_than_needed(sim in node()) {
        let start = sim.clone();
        let end = sim.run(20);
        for eviction in &end.evictions {
            prop_assert!(!start.pods[eviction.victim].exempt);
        }
        let needless = needless(&end);
        prop_assert!(needless.len() <= 1, "{needless:?} of {:?}", end.history());
        if let Some(at) = end.out_of_memory {
            let slept = slept_through(&end, at);
            prop_assert!(slept.is_empty(), "{at}: {slept:?} of {:?}", end.history());
        }
    }

    #[test]
    fn the_limit_is_not_reached_where_one_pod_could_have_prevented_it(sim in node()) {
        let end = without_leftovers(sim).run(20);
        if let Some(at) = end.out_of_memory {
            let missed = missed(&end, at);
            prop_assert!(missed.is_empty(), "{at}: {missed:?} of {:?}", end.history());
            let waited = waited_through(&end, at);
            prop_assert!(waited.is_empty(), "{at}: {waited:?} of {:?}", end.history());
        }
    }
}
