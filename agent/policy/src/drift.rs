//! Foreign writes: which writes of a plan answer them, and how often an
//! answer is given.
//!
//! Terminology: a *file* is one property of one cgroup. A *deviation* is a file that does not hold
//! what podwarden last wrote to it or found right in it. A file is *contested* while another process keeps
//! writing to it against podwarden.
//!
//! Approach: a deviation is corrected at once while the file's bucket holds a token: [`BURST`] of
//! them, one more every [`REFILL`]. With the bucket empty the file is contested: corrections are then
//! [`FIRST_PAUSE`] apart, twice as far each time, at most [`LONGEST_PAUSE`]. The contest ends when the
//! file is found right at the end of a pause; the bucket is full again then.
//!
//! Properties: in any time t a file is corrected at most `BURST + t / REFILL + log2(LONGEST_PAUSE /
//! FIRST_PAUSE) + 1 + t / LONGEST_PAUSE` times without a quiet pause in between. A step towards a value
//! that podwarden itself has not reached yet is no deviation and costs no token.
//!
//! Time is the caller's: any monotonic clock, as the time since its start.

mod limiter;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::time::Duration;

use crate::{
    desired::Desired,
    name::CgroupName,
    plan::Action,
    settings::{Change, Observed, Property, Setting, Value},
    units::Bytes,
};

use limiter::{Answer, Limiter};

/// Corrections of one file that are given at once. Enough for a kubelet that rewrites its tiers twice
/// during its start, and for an operator who tries something by hand.
pub const BURST: u32 = 5;
/// The time after which one more is. Shorter than the minute after which a kubelet writes again, so
/// that a writer that is merely regular is corrected each time.
pub const REFILL: Duration = Duration::from_secs(10);
/// The first pause between two corrections of a contested file.
pub const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest: the time between two passes over the whole tree.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// One file that did not hold what it ought to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deviation {
    /// Which cgroup.
    pub cgroup: CgroupName,
    /// Which property, as [`Setting::name`] names it.
    pub property: &'static str,
    /// What it held.
    pub found: Value,
    /// What podwarden writes.
    pub wanted: Value,
    /// The file is contested: one of many, not worth saying each time.
    pub contested: bool,
}

/// A file that is not contested any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Which cgroup.
    pub cgroup: CgroupName,
    /// Which property, as [`Setting::name`] names it.
    pub property: &'static str,
    /// How often it was corrected since the contest began.
    pub corrections: u32,
}

/// What becomes of a plan's actions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Judgement {
    /// To be carried out, in the plan's order; each with the deviation that it answers, if any.
    pub admitted: Vec<(Action, Option<Deviation>)>,
    /// Writes that wait, of files that became contested just now.
    pub began: Vec<Deviation>,
    /// Files whose contest has ended.
    pub ended: Vec<Settled>,
}

impl Judgement {
    /// Everything is carried out, and nothing answers anybody.
    pub fn of(actions: Vec<Action>) -> Self {
        Self {
            admitted: actions.into_iter().map(|action| (action, None)).collect(),
            ..Self::default()
        }
    }
}

/// Remembers what is in force in every file, and how often each was corrected.
#[derive(Debug, Clone, Default)]
pub struct Tracker {
    files: BTreeMap<CgroupName, BTreeMap<Property, File>>,
    contested: BTreeSet<(CgroupName, Property)>,
}

#[derive(Debug, Clone, Default)]
struct File {
    /// What podwarden wrote or found right last; `None` before, and after a write that was refused.
    in_force: Option<Setting>,
    limiter: Limiter,
}

impl Tracker {
    /// Sorts what a plan would do now into what is done and what waits.
    ///
    /// `observed` is what was read for the plan; of its cgroups those in `desired` are looked at. Call
    /// [`Tracker::refused`] for an admitted action that fails.
    pub fn judge<'a>(
        &mut self,
        now: Duration,
        page: Bytes,
        desired: impl IntoIterator<Item = &'a Desired>,
        observed: &BTreeMap<CgroupName, Observed>,
        actions: Vec<Action>,
    ) -> Judgement {
        let mut judgement = Judgement::default();
        let writes: BTreeSet<_> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Write {
                    cgroup, setting, ..
                } => Some((cgroup, setting.property())),
                _ => None,
            })
            .collect();
        for (desired, observed) in desired
            .into_iter()
            .filter_map(|d| Some((d, observed.get(&d.name)?)))
        {
            for (setting, _) in &desired.settings {
                if !writes.contains(&(&desired.name, setting.property())) {
                    let settled = self.found_right(now, page, &desired.name, setting, observed);
                    judgement.ended.extend(settled);
                }
            }
        }
        for action in actions {
            let Action::Write {
                cgroup, setting, ..
            } = &action
            else {
                judgement.admitted.push((action, None));
                continue;
            };
            match self.write(now, page, cgroup, setting, observed.get(cgroup)) {
                Verdict::Write(deviation) => judgement.admitted.push((action, deviation)),
                Verdict::Wait(began) => judgement.began.extend(began),
            }
        }
        judgement
    }

    /// A file that the plan leaves as it is.
    fn found_right(
        &mut self,
        now: Duration,
        page: Bytes,
        cgroup: &CgroupName,
        setting: &Setting,
        observed: &Observed,
    ) -> Option<Settled> {
        let property = setting.property();
        let file = file(&mut self.files, cgroup, property);
        if !differs(setting, observed, page) {
            file.in_force = Some(*setting);
        } else if file
            .in_force
            .is_none_or(|ours| differs(&ours, observed, page))
        {
            // Held above usage at a foreign value; it is a deviation once it can be lowered.
            file.limiter.postpone(now);
            return None;
        }
        let corrections = file.limiter.agrees(now)?;
        self.contested.remove(&(cgroup.clone(), property));
        Some(Settled {
            cgroup: cgroup.clone(),
            property: property.row().name,
            corrections,
        })
    }

    fn write(
        &mut self,
        now: Duration,
        page: Bytes,
        cgroup: &CgroupName,
        setting: &Setting,
        observed: Option<&Observed>,
    ) -> Verdict {
        let property = setting.property();
        let file = file(&mut self.files, cgroup, property);
        let deviation = observed.and_then(|observed| {
            let in_force = file.in_force.as_ref()?;
            Some(Deviation {
                cgroup: cgroup.clone(),
                property: property.row().name,
                found: differs(in_force, observed, page).then(|| observed.get(property))??,
                wanted: setting.value(observed.version()),
                contested: file.limiter.is_contested(),
            })
        });
        let Some(deviation) = deviation else {
            file.in_force = Some(*setting);
            return Verdict::Write(None);
        };
        match file.limiter.deviates(now) {
            Answer::Correct => {
                file.in_force = Some(*setting);
                Verdict::Write(Some(deviation))
            }
            Answer::Wait { began } => {
                self.contested.insert((cgroup.clone(), property));
                Verdict::Wait(began.then_some(deviation))
            }
        }
    }

    /// A file holds what podwarden has put there by other means than a plan.
    pub fn ours(&mut self, cgroup: &CgroupName, setting: Setting) {
        let file = file(&mut self.files, cgroup, setting.property());
        file.in_force = Some(setting);
    }

    /// An admitted write was refused: what its file holds is not known to be podwarden's.
    pub fn refused(&mut self, action: &Action) {
        let Action::Write {
            cgroup, setting, ..
        } = action
        else {
            return;
        };
        if let Some(file) = self
            .files
            .get_mut(cgroup)
            .and_then(|files| files.get_mut(&setting.property()))
        {
            file.in_force = None;
        }
    }

    /// Forgets a cgroup, which is gone.
    pub fn forget(&mut self, cgroup: &CgroupName) {
        self.files.remove(cgroup);
        self.contested.retain(|(name, _)| name != cgroup);
    }

    /// Forgets the cgroups that are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&CgroupName) -> bool) {
        self.files.retain(|cgroup, _| keep(cgroup));
        self.contested.retain(|(cgroup, _)| keep(cgroup));
    }

    /// When the next contested file is to be looked at; `None` while none is contested.
    pub fn next_look(&self) -> Option<Duration> {
        self.pauses().map(|(_, until)| until).min()
    }

    /// The cgroups whose contested files are to be looked at now.
    pub fn due(&self, now: Duration) -> Vec<&CgroupName> {
        let mut due: Vec<_> = self
            .pauses()
            .filter(|(_, until)| *until <= now)
            .map(|(cgroup, _)| cgroup)
            .collect();
        due.dedup();
        due
    }

    /// How many files are contested.
    pub fn contested(&self) -> usize {
        self.contested.len()
    }

    /// True while a file of this cgroup is contested.
    pub fn is_contested(&self, cgroup: &CgroupName) -> bool {
        self.contested.iter().any(|(name, _)| name == cgroup)
    }

    fn pauses(&self) -> impl Iterator<Item = (&CgroupName, Duration)> {
        self.contested.iter().filter_map(|(cgroup, property)| {
            let file = self.files.get(cgroup)?.get(property)?;
            Some((cgroup, file.limiter.paused_until()?))
        })
    }
}

fn file<'a>(
    files: &'a mut BTreeMap<CgroupName, BTreeMap<Property, File>>,
    cgroup: &CgroupName,
    property: Property,
) -> &'a mut File {
    files
        .entry(cgroup.clone())
        .or_default()
        .entry(property)
        .or_default()
}

enum Verdict {
    Write(Option<Deviation>),
    /// With the deviation when the contest begins.
    Wait(Option<Deviation>),
}

fn differs(setting: &Setting, observed: &Observed, page: Bytes) -> bool {
    setting.change_from(observed, page) != Change::None
}
