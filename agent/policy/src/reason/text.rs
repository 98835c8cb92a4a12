//! The parts of a reason's text that depend on a value.

use core::fmt::{self, Display, from_fn};

use crate::{model::QosClass, units::Bytes};

/// What `qosReserved` keeps of a BestEffort tier's limit for Burstable pods.
pub(super) fn of_burstable(percent: u8, burstable: Option<Bytes>) -> impl Display {
    from_fn(move |f| match burstable {
        Some(requests) => write!(f, " - {percent}% of Burstable requests {requests}"),
        None => Ok(()),
    })
}

/// A container's part of what the pod asks for beyond its containers.
pub(super) fn extra(bytes: i64) -> impl Display {
    let sign = if bytes < 0 { '-' } else { '+' };
    let part = Bytes(bytes.unsigned_abs());
    from_fn(move |f| match bytes {
        0 => Ok(()),
        _ => write!(f, " {sign} {part}, its part of the pod's own"),
    })
}

/// Why an `oom_score_adj` is the same for all.
pub(super) fn of_class(node_critical: bool, qos: QosClass) -> impl Display {
    from_fn(move |f| match node_critical {
        true => f.write_str("the pod is system-node-critical"),
        false => write!(f, "the same for every {qos} pod"),
    })
}

/// A part of one, as a decimal without zeros at its end: 0.9 of 900,000.
pub(super) struct Millionths(pub(super) u32);

impl Display for Millionths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ONE: u32 = crate::container::THROTTLING_FACTOR_ONE;
        write!(f, "{}", self.0 / ONE)?;
        let mut fraction = self.0 % ONE;
        let mut digit = ONE / 10;
        if fraction > 0 {
            f.write_str(".")?;
        }
        while fraction > 0 {
            write!(f, "{}", fraction / digit)?;
            fraction %= digit;
            digit /= 10;
        }
        Ok(())
    }
}
