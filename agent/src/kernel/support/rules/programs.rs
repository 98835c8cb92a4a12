//! Whether the kernel takes the programs, and what each of them gives.

use podwarden_abi::Figure;

use super::{
    super::{KernelSupport, Lockdown, Trial},
    Level, Row, row,
};
use crate::kernel::hooks::{self, CHARGE, Hook, WALK};

const NO_PROGRAM: &str = "no kernel programs: figures and levels come from the cgroup files, \
                          short processes go unseen";

const NOTHING_WORKS: &str = "no kernel programs: nothing works without this one";

/// True when every hook that nothing works without fits, and the kernel has the members for it.
pub(super) fn fit(support: &KernelSupport) -> bool {
    let Some(found) = &support.tracepoints else {
        return false;
    };
    let mut needed = hooks::by_tracepoint().filter(|hooks| hooks[0].lost_without.is_none());
    let fits = |hooks: &[Hook]| {
        let arguments = found.get(hooks[0].tracepoint).map(Vec::as_slice);
        hooks::choose(hooks, arguments).is_ok()
    };
    needed.all(fits) && !lacks(support, Figure::Accounts)
}

/// True when the kernel is known to lack a member for `figure`.
pub(super) fn lacks(support: &KernelSupport, figure: Figure) -> bool {
    let mut lacking = support.lacking.iter().flatten();
    lacking.any(|member| member.figure == figure)
}

/// A row for something that was tried.
fn tried(
    fact: &'static str,
    trial: Option<&Trial>,
    enables: &'static str,
    lost_without: &'static str,
) -> Row {
    Row {
        found: match trial {
            Some(Trial::Works) => "works".to_owned(),
            Some(Trial::Refused(why)) => format!("refused ({why})"),
            None => "unknown (not tried: it needs BTF)".to_owned(),
        },
        ..row(
            fact,
            Some(trial == Some(&Trial::Works)),
            enables,
            lost_without,
            Level::Degraded,
        )
    }
}

/// Whether programs load at all.
pub(super) fn load(support: &KernelSupport) -> Vec<Row> {
    let no_charge = CHARGE.lost_without.unwrap_or_default();
    let part = Some(CHARGE.tracepoint);
    let lockdown = Row {
        found: match support.lockdown {
            Some(Lockdown::None) => "none",
            Some(Lockdown::Integrity) => "integrity",
            Some(Lockdown::Confidentiality) => "confidentiality",
            None => "unknown (securityfs is not mounted or not readable)",
        }
        .to_owned(),
        // The trials show what it refuses.
        ..row(
            "lockdown",
            Some(true),
            "none lets programs read kernel memory and attach to functions",
            "confidentiality refuses kernel programs, integrity may refuse fentry",
            Level::Ok,
        )
    };
    vec![
        row(
            "kernel types (BTF)",
            support.btf,
            "programs fit this very kernel",
            NO_PROGRAM,
            Level::Degraded,
        ),
        lockdown,
        tried(
            "ring buffer",
            support.ring_buffer.as_ref(),
            "events at once, in order",
            NO_PROGRAM,
        ),
        tried(
            "tp_btf program",
            support.tp_btf.as_ref(),
            "accounts of every pod, from the kernel",
            NO_PROGRAM,
        ),
        Row {
            part,
            ..row(
                CHARGE.tracepoint,
                support.charge_function,
                CHARGE.enables,
                no_charge,
                Level::Degraded,
            )
        },
        Row {
            part,
            ..tried(
                "fentry program",
                support.fentry.as_ref(),
                CHARGE.enables,
                no_charge,
            )
        },
        Row {
            part: Some(WALK.tracepoint),
            ..tried(
                "cgroup iterator (6.1)",
                support.iterator.as_ref(),
                WALK.enables,
                WALK.lost_without.unwrap_or_default(),
            )
        },
    ]
}

/// A row for each tracepoint.
pub(super) fn tracepoints(support: &KernelSupport) -> impl Iterator<Item = Row> {
    hooks::by_tracepoint().map(|hooks| {
        let hook = &hooks[0];
        let found = support.tracepoints.as_ref();
        let arguments = found.map(|found| found.get(hook.tracepoint).map(Vec::as_slice));
        let choice = arguments.map(|arguments| hooks::choose(hooks, arguments));
        let judged = row(
            hook.tracepoint,
            choice.as_ref().map(Result::is_ok),
            hook.enables,
            hook.lost_without.unwrap_or(NOTHING_WORKS),
            Level::Degraded,
        );
        let text = match (arguments.flatten(), choice) {
            (Some(arguments), Some(Ok(_))) => {
                let count = arguments.len();
                format!("yes, {count} argument{}", if count == 1 { "" } else { "s" })
            }
            (Some(_), Some(Err(why))) => why,
            _ => judged.found,
        };
        Row {
            found: text,
            part: Some(hook.tracepoint),
            ..judged
        }
    })
}

/// A row for each figure whose members this kernel lacks.
pub(super) fn figures(support: &KernelSupport) -> impl Iterator<Item = Row> {
    let lacking = support.lacking.as_deref().unwrap_or_default();
    hooks::lost_figures(lacking).map(|(figure, found)| {
        let (name, lost) = hooks::figure(figure);
        let lost = lost.unwrap_or(NO_PROGRAM);
        Row {
            found,
            part: Some(name),
            ..row(name, Some(false), name, lost, Level::Degraded)
        }
    })
}
