//! Records of the rings -> typed events. Anything malformed is an error, never a panic.

use aya::Pod;
use podwarden_abi::{
    CgroupEvent, EventHeader, EventKind, ExitEvent, NAME_LEN, NearLimitEvent, OomEvent,
};

use super::wire::Wire;

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
    /// A memory cgroup's usage came near its limit.
    NearLimit(NearLimitEvent),
}

/// A cgroup in scope, as a record describes it.
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

/// The record of type `T` that `bytes` begin with; allocates nothing.
pub(crate) fn record<T>(bytes: &[u8]) -> Result<T, DecodeError>
where
    Wire<T>: Pod,
{
    let (found, expected) = (bytes.len(), size_of::<T>());
    Wire::read(bytes).ok_or(DecodeError::Short { found, expected })
}

/// Reads a record of the telemetry ring.
pub fn telemetry(bytes: &[u8]) -> Result<Telemetry, DecodeError> {
    let EventHeader { kind, .. } = record(bytes)?;
    Ok(
        match EventKind::from_u32(kind).ok_or(DecodeError::Kind(kind))? {
            EventKind::Mkdir => Telemetry::Created(change(bytes)?),
            EventKind::Rmdir => Telemetry::Removed(change(bytes)?),
            EventKind::Release => Telemetry::Released(change(bytes)?),
            EventKind::Exit => Telemetry::Exit(record(bytes)?),
            EventKind::Oom => Telemetry::Oom(record(bytes)?),
            EventKind::NearLimit => Telemetry::NearLimit(record(bytes)?),
        },
    )
}

fn change(bytes: &[u8]) -> Result<CgroupChange, DecodeError> {
    let event: CgroupEvent = record(bytes)?;
    let length = (event.name_len as usize).min(NAME_LEN);
    Ok(CgroupChange {
        time_ns: event.header.time_ns,
        id: event.header.cgroup,
        parent: event.parent,
        slot: event.header.slot,
        depth: event.depth,
        name: String::from_utf8_lossy(&event.name[..length]).into_owned(),
    })
}

/// The command of an exit record, up to its first NUL.
pub fn command(event: &ExitEvent) -> String {
    let end = event.comm.iter().position(|b| *b == 0);
    String::from_utf8_lossy(&event.comm[..end.unwrap_or(event.comm.len())]).into_owned()
}

#[cfg(test)]
mod tests {
    use podwarden_abi::{Crossing, LongWait};
    use proptest::prelude::*;

    use super::*;

    /// Of a type of the boundary.
    fn bytes_of<T: Copy>(value: &T) -> Vec<u8> {
        let at = std::ptr::from_ref(value).cast::<u8>();
        // SAFETY: repr(C) without padding that has no name.
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

    #[test]
    fn every_field_is_read_where_the_programs_write_it() {
        let bytes: Vec<u8> = (0..size_of::<ExitEvent>()).map(|n| n as u8).collect();
        let mut exit_bytes = bytes.clone();
        exit_bytes[..4].copy_from_slice(&(EventKind::Exit as u32).to_ne_bytes());
        let Telemetry::Exit(event) = telemetry(&exit_bytes).unwrap() else {
            panic!("not an exit");
        };
        assert_eq!(bytes_of(&event), exit_bytes);
        let mut oom_bytes = bytes[..size_of::<OomEvent>()].to_vec();
        oom_bytes[..4].copy_from_slice(&(EventKind::Oom as u32).to_ne_bytes());
        let Telemetry::Oom(event) = telemetry(&oom_bytes).unwrap() else {
            panic!("not a kill");
        };
        assert_eq!(bytes_of(&event), oom_bytes);
        let mut near_bytes = bytes[..size_of::<NearLimitEvent>()].to_vec();
        near_bytes[..4].copy_from_slice(&(EventKind::NearLimit as u32).to_ne_bytes());
        let Telemetry::NearLimit(event) = telemetry(&near_bytes).unwrap() else {
            panic!("not near a limit");
        };
        assert_eq!(bytes_of(&event), near_bytes);
        let wait = &bytes[..size_of::<LongWait>()];
        assert_eq!(bytes_of(&record::<LongWait>(wait).unwrap()), wait);
        let bytes = &bytes[..size_of::<Crossing>()];
        assert_eq!(bytes_of(&record::<Crossing>(bytes).unwrap()), bytes);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = telemetry(&bytes);
            let _ = record::<Crossing>(&bytes);
            let _ = record::<LongWait>(&bytes);
        }
    }
}
