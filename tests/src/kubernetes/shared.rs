//! The cluster that all cases of a run share.

use std::rc::Rc;

use anyhow::{Result, bail};

use super::{Cluster, Driver};
use crate::cases::{Context, Skip, skip};

/// The cluster of a run of the cases.
#[derive(Debug, Default)]
pub(crate) enum Shared {
    /// No case has asked for it yet.
    #[default]
    NotStarted,
    /// It runs.
    Running(Rc<Cluster>),
    /// It cannot run here, or did not start.
    Absent { reason: String, skipped: bool },
}

impl Shared {
    /// The cluster, started for the first case that asks; that case is skipped, and every further one, where
    /// none can run.
    pub(crate) fn get(&mut self, context: &Context) -> Result<Rc<Cluster>> {
        if matches!(self, Self::NotStarted) {
            *self = match start(context) {
                Ok(cluster) => Self::Running(Rc::new(cluster)),
                Err(error) => Self::Absent {
                    skipped: error.is::<Skip>(),
                    reason: format!("{error:#}"),
                },
            };
        }
        match self {
            Self::Running(cluster) => Ok(Rc::clone(cluster)),
            Self::Absent {
                reason,
                skipped: true,
            } => {
                skip(reason.clone())?;
                bail!("it was skipped")
            }
            Self::Absent { reason, .. } => bail!("no Kubernetes: {reason}"),
            Self::NotStarted => bail!("no Kubernetes was started"),
        }
    }
}

fn start(context: &Context) -> Result<Cluster> {
    if context.emulated() {
        skip("the test machine has no Kubernetes for this case")?;
    }
    Cluster::start(context, Driver::Cgroupfs)
}
