//! Thousands of things happen to the sources of pods, to their servers and to the agent; what is left of all
//! that is what an agent makes of the final lists that never saw anything else.

mod compare;
mod history;

use anyhow::{Context as _, Result};

use self::{compare::Seen, history::History};
use super::{Case, Context, portable};

pub(super) const CASES: &[Case] = &[portable("random_source_events", random_source_events)];

/// How many things happen; with what takes minutes, more.
const FEW: usize = 1200;
const MANY: usize = 5000;

fn random_source_events(context: &Context) -> Result<()> {
    for _ in 0..context.repetitions(1) {
        let seed = context.seed();
        events(context, seed).with_context(|| format!("with --seed {seed}"))?;
    }
    Ok(())
}

fn events(context: &Context, seed: u64) -> Result<()> {
    let mut history = History::begin(context, seed)?;
    let whole = match context.include_slow() {
        true => MANY,
        false => FEW,
    };
    while history.tally().total() < whole {
        history.go_on()?;
    }
    history.calm_down()?;
    let long = Seen::once(context, history.node(), |seen| history.expect(seen))?;

    // The same lists, and nothing before them.
    let fresh = history.another()?;
    let short = Seen::once(context, &fresh, |seen| history.expect(seen))?;
    long.ensure_is(&short)?;
    context.figure("pods_in_the_end", short.pods.len() as f64, "");
    context.figure("values_compared", short.tree.len() as f64, "");
    history.finish(fresh)
}
