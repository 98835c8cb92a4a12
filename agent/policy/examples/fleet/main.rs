//! `cargo xtask bench fleet`: a day of a fleet of nodes that sell what their guaranteed pods leave, once by each policy.
//!
//! ```text
//! traces ──> services (guaranteed pods of a node) ──┬─> seller: usage
//!    └─────> asks (batch pods that arrive)  ────────┼─> seller: request           ──> tally ──> table, picture
//!                                                   └─> ...
//! ```
//!
//! Every seller of a node sees the same guaranteed pods and the same arrivals. What is offered, how CPU is
//! suppressed, and which pods are evicted are the functions of this crate that the agent calls. Nodes do not affect one another: batch
//! pods arrive at a node, and those that wait too long there leave.
//!
//! The same seed gives the same figures, with any number of threads.

use std::{path::PathBuf, process::ExitCode, thread, time::Instant};

use clap::Parser;
use podwarden_policy::colocation::memory_evict::LevelsError;
use rand::SeedableRng as _;

use crate::{
    seller::{ALL, FIGURES, Seller},
    services::Services,
    tally::{Day, Tally},
    traces::{DAY_S, NODE_CPU, Random, STEP_S},
};

mod picture;
mod seller;
mod services;
mod table;
mod tally;
mod traces;

/// A day of a fleet that sells reclaimed resources, by each policy.
#[derive(Debug, Parser)]
struct Args {
    /// Nodes of the fleet.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    nodes: u64,
    /// Chooses pods, usage and arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads; as many as there are CPUs by default.
    #[arg(long)]
    threads: Option<u64>,
    /// Also draws the day.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let cpus = || thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let threads = args.threads.unwrap_or_else(cpus).clamp(1, args.nodes);
    let start = Instant::now();
    let day = fleet(args.nodes, args.seed, threads)?;
    print!("{}", table::text(&day, args.nodes));
    eprintln!(
        "{} nodes, seed {}, {threads} threads: {:.1} s",
        args.nodes,
        args.seed,
        start.elapsed().as_secs_f64()
    );
    if let Some(path) = &args.svg {
        let svg = picture::svg(&day, args.nodes)?;
        std::fs::write(path, svg).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Every node of the fleet, some on each thread.
fn fleet(nodes: u64, seed: u64, threads: u64) -> Result<Day, LevelsError> {
    let course = traces::day();
    let course = &course;
    let some = |first: u64| {
        let mut sum = Day::default();
        for number in (first..nodes).step_by(usize::try_from(threads).unwrap_or(1)) {
            sum.merge(&node(seed, number, course)?);
        }
        Ok(sum)
    };
    thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || some(first)))
            .collect();
        let mut sum = Day::default();
        for thread in started {
            match thread.join() {
                Ok(part) => sum.merge(&part?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(sum)
    })
}

/// A node's day; the seed and its number choose what happens there.
fn node(seed: u64, number: u64, course: &[f64]) -> Result<Day, LevelsError> {
    let mut random = Random::seed_from_u64(seed);
    random.set_stream(number);
    let mut services = Services::new(course, &mut random);
    let arrivals = traces::batch(&mut random);
    let mut arrivals = arrivals.as_slice();
    let mut sellers = Vec::with_capacity(ALL.len());
    for rules in &ALL {
        sellers.push((Seller::new(rules)?, Tally::default()));
    }
    let mut day = Day::default();
    // The day before has trained the predictor.
    for step in 0..DAY_S / STEP_S {
        let second = step * STEP_S;
        let now = DAY_S + second;
        services.step(now, course, &mut random);
        day.requested.add(now, services.requested, STEP_S);
        day.used.add(now, services.used, STEP_S);
        if services.used.0 + services.system.0 > NODE_CPU {
            day.short_s += STEP_S;
        }
        let due = arrivals.partition_point(|ask| ask.at <= second);
        let (asks, later) = arrivals.split_at(due);
        arrivals = later;
        let seen = step.is_multiple_of(FIGURES).then(|| services.seen());
        for (seller, tally) in &mut sellers {
            seller.step(now, &services, seen.as_ref(), asks, tally);
        }
    }
    day.sellers = sellers.into_iter().map(|(_, tally)| tally).collect();
    Ok(day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_alone_decides_a_day() {
        let day = fleet(6, 7, 1).unwrap();
        assert_eq!(fleet(6, 7, 4).unwrap(), day);
        assert_ne!(fleet(6, 8, 1).unwrap(), day);
    }

    #[test]
    fn figures_of_a_day_agree_with_one_another() {
        let day = fleet(8, 3, 2).unwrap();
        let most = 8 * DAY_S * NODE_CPU;
        assert!(day.used.total().0 <= 2 * day.requested.total().0);
        for (rules, tally) in ALL.iter().zip(&day.sellers) {
            let (held, used) = (tally.held.total(), tally.used.total());
            let name = rules.name;
            assert!(used.0 <= held.0 && used.1 <= held.1, "{name}: used of sold");
            // What runs is offered at least.
            assert!(
                held.0 <= tally.offer.0 + tally.offer.0 / 5,
                "{name}: sold of offered"
            );
            assert!(
                day.used.total().0 + used.0 <= 2 * most,
                "{name}: CPU of the fleet"
            );
            assert!(
                tally.finished + tally.evicted <= tally.started,
                "{name}: pods"
            );
            assert!(tally.started > 0, "{name}: nothing was sold");
        }
        let of = |at: usize| day.sellers[at].held.total();
        // The larger of both is never less than usage, so that less is sold.
        assert!(
            of(2).0 <= of(0).0,
            "maxUsageRequest sells more CPU than usage"
        );
        assert!(
            of(2).1 <= of(0).1,
            "maxUsageRequest sells more memory than usage"
        );
    }
}
