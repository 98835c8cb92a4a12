//! Records of the rings -> typed events. Anything malformed is an error, never a panic.

use podwarden_abi::{CgroupEvent, Crossing, EventHeader, EventKind, ExitEvent, NAME_LEN, OomEvent};

/// A record of the telemetry ring.
#[derive(Debug, Clone)]
pub enum Telemetry {
    /// A cgroup in scope was created.
    Created(CgroupChange),
    /// It was removed; tasks that are exiting may still count to it.
    Removed(CgroupChange),
    /// Nothing can count to it any more.
    Released(CgroupChange),
    /// A process ended.
    Exit(ExitEvent),
    /// The OOM killer chose a process.
    Oom(OomEvent),
}

/// A cgroup in scope, as the kernel tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupChange {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    /// Its kernel id.
    pub id: u64,
    /// Its parent's.
    pub parent: u64,
    /// What it counts to.
    pub slot: u32,
    /// Levels below kubepods.
    pub depth: u32,
    /// Its directory's name.
    pub name: String,
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// Fewer bytes than its kind has.
    #[error("a record of {found} bytes where {expected} were expected")]
    Short {
        /// Bytes there.
        found: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// A kind that this agent does not know.
    #[error("a record of unknown kind {0}")]
    Kind(u32),
}

/// Types that any bytes of their size are a value of.
///
/// # Safety
/// `repr(C)`, integers and arrays of integers only.
unsafe trait Plain: Copy {}
// SAFETY: as podwarden-abi declares them.
unsafe impl Plain for EventHeader {}
// SAFETY: as above.
unsafe impl Plain for CgroupEvent {}
// SAFETY: as above.
unsafe impl Plain for ExitEvent {}
// SAFETY: as above.
unsafe impl Plain for OomEvent {}
// SAFETY: as above.
unsafe impl Plain for Crossing {}

fn plain<T: Plain>(bytes: &[u8]) -> Result<T, DecodeError> {
    if bytes.len() < size_of::<T>() {
        return Err(DecodeError::Short {
            found: bytes.len(),
            expected: size_of::<T>(),
        });
    }
    // SAFETY: long enough, and any bytes are a T.
    Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Reads a record of the telemetry ring.
///
/// # Errors
/// [`DecodeError`].
pub fn telemetry(bytes: &[u8]) -> Result<Telemetry, DecodeError> {
    let header: EventHeader = plain(bytes)?;
    Ok(
        match EventKind::from_u32(header.kind).ok_or(DecodeError::Kind(header.kind))? {
            EventKind::Mkdir => Telemetry::Created(change(&plain(bytes)?)),
            EventKind::Rmdir => Telemetry::Removed(change(&plain(bytes)?)),
            EventKind::Release => Telemetry::Released(change(&plain(bytes)?)),
            EventKind::Exit => Telemetry::Exit(plain(bytes)?),
            EventKind::Oom => Telemetry::Oom(plain(bytes)?),
        },
    )
}

/// Reads a record of the decisions ring; allocates nothing.
///
/// # Errors
/// [`DecodeError`].
pub fn crossing(bytes: &[u8]) -> Result<Crossing, DecodeError> {
    plain(bytes)
}

fn change(event: &CgroupEvent) -> CgroupChange {
    let len = (event.name_len as usize).min(NAME_LEN);
    CgroupChange {
        time_ns: event.header.time_ns,
        id: event.header.cgroup,
        parent: event.parent,
        slot: event.header.slot,
        depth: event.depth,
        name: String::from_utf8_lossy(&event.name[..len]).into_owned(),
    }
}

/// The command of an exit record, up to its first NUL.
pub fn command(event: &ExitEvent) -> String {
    let end = event.comm.iter().position(|b| *b == 0);
    String::from_utf8_lossy(&event.comm[..end.unwrap_or(event.comm.len())]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes_of<T: Plain>(value: &T) -> Vec<u8> {
        let at = std::ptr::from_ref(value).cast::<u8>();
        // SAFETY: a Plain value is its bytes.
        unsafe { std::slice::from_raw_parts(at, size_of::<T>()) }.to_vec()
    }

    fn mkdir(name: &str) -> CgroupEvent {
        let mut event = CgroupEvent {
            header: EventHeader {
                kind: EventKind::Mkdir as u32,
                slot: 7,
                time_ns: 99,
                cgroup: 1234,
            },
            parent: 1200,
            depth: 2,
            name_len: u32::try_from(name.len()).unwrap(),
            name: [0; NAME_LEN],
        };
        event.name[..name.len()].copy_from_slice(name.as_bytes());
        event
    }

    #[test]
    fn a_created_cgroup_keeps_its_name_and_ids() {
        let Telemetry::Created(change) = telemetry(&bytes_of(&mkdir("podabc"))).unwrap() else {
            panic!("not a creation");
        };
        assert_eq!(
            change,
            CgroupChange {
                time_ns: 99,
                id: 1234,
                parent: 1200,
                slot: 7,
                depth: 2,
                name: "podabc".to_owned(),
            }
        );
    }

    #[test]
    fn a_name_length_past_the_buffer_is_cut() {
        let mut event = mkdir("x");
        event.name_len = u32::MAX;
        let Telemetry::Created(change) = telemetry(&bytes_of(&event)).unwrap() else {
            panic!("not a creation");
        };
        assert_eq!(change.name.len(), NAME_LEN);
    }

    #[test]
    fn unknown_kinds_and_short_records_are_errors() {
        let mut event = mkdir("x");
        event.header.kind = 77;
        assert_eq!(
            telemetry(&bytes_of(&event)).unwrap_err(),
            DecodeError::Kind(77)
        );
        assert_eq!(
            telemetry(&bytes_of(&mkdir("x"))[..40]).unwrap_err(),
            DecodeError::Short {
                found: 40,
                expected: size_of::<CgroupEvent>()
            }
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = telemetry(&bytes);
            let _ = crossing(&bytes);
        }
    }
}
