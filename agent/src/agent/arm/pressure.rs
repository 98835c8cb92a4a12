//! Registers PSI triggers: the kernel notifies when tasks wait for memory.

use std::{sync::Arc, time::Duration};

use podwarden_cgroup::{
    CgroupPath, Controller, Errno, Error, MemoryReader, PsiKind, PsiResource, PsiThreshold,
    PsiTrigger, Tree,
};

use super::{Inputs, ScopeName, scope_path};
use crate::{
    config::{PressureConfig, Stall},
    reactor::{
        free::FreeMemory,
        plan::{ArmedPlan, Pressure, StallTrigger},
    },
};

/// What a caller without CAP_SYS_RESOURCE may have a multiple of, at most [`LONGEST`]
/// (`psi_trigger_create`, kernel `kernel/sched/psi.c`).
const UNPRIVILEGED: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(10);

/// The triggers in force, or new ones.
pub(super) fn arm(inputs: &Inputs<'_>, before: &ArmedPlan) -> Option<Arc<Pressure>> {
    let wanted: Vec<_> = inputs.pressure.stalls().collect();
    if wanted.is_empty() {
        return None;
    }
    let path = scope_path(inputs.layout, ScopeName::Kubepods);
    let memory_id = inputs.tree.memory_id(&path).ok()?;
    let same = |pressure: &&Arc<Pressure>| pressure.memory_id == memory_id;
    if let Some(pressure) = before.pressure.as_ref().filter(same) {
        return Some(Arc::clone(pressure));
    }
    let made = || -> anyhow::Result<Pressure> {
        let triggers = wanted.iter().map(|(kind, stall)| {
            trigger(inputs.tree, &path, *kind, *stall).map(|(trigger, _)| trigger)
        });
        Ok(Pressure {
            memory: MemoryReader::open(inputs.tree, &path)?,
            memory_id,
            free: FreeMemory::open()?,
            triggers: triggers.collect::<Result<_, _>>()?,
        })
    };
    match made() {
        Ok(pressure) => Some(Arc::new(pressure)),
        Err(error) => {
            tracing::warn!("tasks that wait for memory go unnoticed: {error:#}");
            None
        }
    }
}

/// What is lost of the configured thresholds on this node; one sentence each.
pub(crate) fn degradations(config: &PressureConfig) -> Vec<String> {
    let tried = config.stalls().map(|(kind, stall)| {
        let field = format!("pressure.memory.{}", kind.as_str());
        match of_node(kind, stall) {
            Ok((_, used)) if used == stall => None,
            Ok((_, used)) => Some(format!(
                "{field} looks {used} back, not {stall}: without CAP_SYS_RESOURCE the kernel takes multiples \
                 of 2s alone"
            )),
            Err(error) => Some(format!(
                "{field}: tasks that wait for memory go unnoticed ({error}): boot with psi=1"
            )),
        }
    });
    tried.flatten().collect()
}

/// Of kubepods where its tasks are in v2's hierarchy with the memory controller, else of the node.
fn trigger(
    tree: &Tree,
    path: &CgroupPath,
    kind: PsiKind,
    stall: Stall,
) -> Result<(StallTrigger, Stall), Error> {
    if !tree.hierarchies().is_on_v2(Controller::Memory) {
        return of_node(kind, stall);
    }
    widened(kind, stall, |threshold| {
        PsiTrigger::new(tree, path, PsiResource::Memory, threshold)
    })
}

fn of_node(kind: PsiKind, stall: Stall) -> Result<(StallTrigger, Stall), Error> {
    widened(kind, stall, |threshold| {
        PsiTrigger::of_node(PsiResource::Memory, threshold)
    })
}

/// As configured or, where that takes a privilege that the agent does not have, the same share of a
/// longer window.
fn widened(
    kind: PsiKind,
    stall: Stall,
    make: impl Fn(PsiThreshold) -> Result<PsiTrigger, Error>,
) -> Result<(StallTrigger, Stall), Error> {
    let made = |stall: Stall| -> Result<_, Error> {
        let notice = make(PsiThreshold {
            kind,
            stall_us: micros(stall.stall),
            window_us: micros(stall.window),
        })?;
        let trigger = StallTrigger {
            kind,
            window: stall.window,
            notice: notice.into(),
        };
        Ok((trigger, stall))
    };
    match made(stall) {
        Err(error) if error.errno() == Some(Errno::INVAL) => {
            let wider = wide(stall);
            if wider == stall {
                Err(error)
            } else {
                made(wider)
            }
        }
        result => result,
    }
}

/// The same share of the next window that every caller may have.
fn wide(stall: Stall) -> Stall {
    let (unit, length) = (UNPRIVILEGED.as_micros(), stall.window.as_micros());
    let micros = length.div_ceil(unit).max(1) * unit;
    let window = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).min(LONGEST);
    let share = stall.stall.as_micros() * window.as_micros() / length.max(1);
    Stall {
        stall: Duration::from_micros(u64::try_from(share).unwrap_or(u64::MAX)),
        window,
    }
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall(stall: u64, window: u64) -> Stall {
        Stall {
            stall: Duration::from_millis(stall),
            window: Duration::from_millis(window),
        }
    }

    #[test]
    fn a_wider_window_has_the_same_share() {
        assert_eq!(wide(stall(100, 1000)), stall(200, 2000));
        assert_eq!(wide(stall(250, 2500)), stall(400, 4000));
        assert_eq!(wide(stall(100, 2000)), stall(100, 2000));
        assert_eq!(wide(stall(10_000, 10_000)), stall(10_000, 10_000));
    }

    #[test]
    fn what_is_not_configured_is_not_missed() {
        assert_eq!(degradations(&PressureConfig::default()), [""; 0]);
    }
}
