//! The types of the boundary as bytes.

use aya::Pod;
use podwarden_abi::{
    CgroupEvent, Control, CpuAccount, CpuState, Crossing, EventHeader, ExitEvent, Level, LongWait,
    NearLimitEvent, Objective, OomEvent, SharedAccount, Tracked, WalkEnd, WalkPlan,
};

/// A type of the boundary, as aya wants it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wire<T>(pub(super) T);

macro_rules! wire {
    ($($t:ty),*) => { $(
        // SAFETY: repr(C), integers only, every padding byte named (sizes asserted where they are declared).
        unsafe impl Pod for Wire<$t> {}
    )* };
}
wire!(
    CgroupEvent,
    Control,
    CpuAccount,
    CpuState,
    Crossing,
    EventHeader,
    ExitEvent,
    Level,
    LongWait,
    NearLimitEvent,
    Objective,
    OomEvent,
    SharedAccount,
    Tracked,
    WalkEnd,
    WalkPlan
);

impl<T> Wire<T>
where
    Self: Pod,
{
    /// The value at the beginning of `bytes`; `None` where they are too few.
    pub(super) fn read(bytes: &[u8]) -> Option<T> {
        let bytes = bytes.get(..size_of::<T>())?;
        // SAFETY: there are as many bytes as a `T` has, and any bytes are one.
        let Self(value) = unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() };
        Some(value)
    }
}
