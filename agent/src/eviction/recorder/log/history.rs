//! Reads what an event log holds: at the start of an agent, and for one event.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead as _, BufReader},
    path::Path,
};

use super::{Begun, Line, rotated};
use crate::api::types::{Event, EventRecord};

/// What agents before this one have left.
#[derive(Debug, Default)]
pub struct History {
    /// Events by id, the oldest first, without their curves.
    pub events: Vec<Event>,
    /// Evictions that agents before this one did not see the end of, the oldest first.
    pub interrupted: Vec<Begun>,
    /// No event before this one had a higher id.
    pub last_id: u64,
    /// Lines that were skipped: torn by a crash, or of a version that wrote something else.
    pub skipped: u64,
}

/// Reads both generations and keeps the latest `most` events. A file that is not there is empty.
pub fn read(path: &Path, most: usize) -> io::Result<History> {
    let mut history = History::default();
    let mut events = BTreeMap::new();
    let skipped = each(path, |line| match line {
        Line::Reservation(mark) => history.last_id = history.last_id.max(mark.ids_reserved_to),
        Line::Record(record) => {
            history.last_id = history.last_id.max(record.event.id);
            history
                .interrupted
                .retain(|begun| !begun.is(&record.event.kind));
            events.insert(record.event.id, record.event);
            if events.len() > most {
                events.pop_first();
            }
        }
        Line::Begun(begun) => history.interrupted.push(*begun),
    })?;
    history.events = events.into_values().collect();
    history.skipped = skipped;
    Ok(history)
}

/// The last line for event `id`, and how many lines could not be read.
pub fn find(path: &Path, id: u64) -> io::Result<(Option<EventRecord>, u64)> {
    let mut found = None;
    let skipped = each(path, |line| match line {
        Line::Record(record) if record.event.id == id => found = Some(*record),
        Line::Record(_) | Line::Reservation(_) | Line::Begun(_) => {}
    })?;
    Ok((found, skipped))
}

/// Hands over every line, the oldest first; returns how many could not be read.
fn each(path: &Path, mut take: impl FnMut(Line)) -> io::Result<u64> {
    let mut skipped = 0;
    for path in [rotated(path), path.to_owned()] {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let whole = line.strip_suffix(b"\n");
            match whole.and_then(|line| serde_json::from_slice(line).ok()) {
                Some(line) => take(line),
                None => skipped += 1,
            }
        }
    }
    Ok(skipped)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::api::types::{EventKind, Eviction};

    fn line(id: u64, pid: u32) -> String {
        let event = Event {
            id,
            time: "2026-01-01T00:00:00.000000Z".to_owned(),
            pod: None,
            kind: EventKind::KernelOom { pid },
        };
        let record = EventRecord {
            event,
            flight_record: None,
        };
        serde_json::to_string(&record).unwrap() + "\n"
    }

    #[test]
    fn both_generations_are_read_and_the_last_line_of_an_id_stands() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        assert_eq!(read(&path, 10).unwrap().last_id, 0, "nothing is there");
        let old = "{\"idsReservedTo\":100}\n".to_owned() + &line(3, 30) + &line(4, 40);
        fs::write(rotated(&path), old).unwrap();
        fs::write(
            &path,
            line(4, 41) + "nonsense\n{\"id\":9}\n" + &line(7, 70) + "{\"id\":8,\"ti",
        )
        .unwrap();
        let history = read(&path, 10).unwrap();
        let found: Vec<_> = history
            .events
            .iter()
            .map(|e| (e.id, e.kind.clone()))
            .collect();
        let oom = |pid| EventKind::KernelOom { pid };
        assert_eq!(found, [(3, oom(30)), (4, oom(41)), (7, oom(70))]);
        assert_eq!((history.last_id, history.skipped), (100, 3));
        let latest = read(&path, 1).unwrap().events;
        assert_eq!(latest.iter().map(|e| e.id).collect::<Vec<_>>(), [7]);
        let of = |id| find(&path, id).unwrap();
        assert_eq!(of(4).0.unwrap().event.kind, oom(41));
        assert_eq!(of(5).0, None);
    }

    #[test]
    fn an_eviction_without_an_event_is_interrupted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let begun = |uid: &str, killed| {
            let mut eviction = Eviction::default();
            eviction.pod.uid = uid.into();
            eviction.timeline.killed_nanos = Some(killed);
            let time = "2026-01-01T00:00:00.000000Z".to_owned();
            Begun { time, eviction }
        };
        let event = |id, begun: &Begun| EventRecord {
            event: Event {
                id,
                time: begun.time.clone(),
                pod: None,
                kind: EventKind::Eviction(Box::new(begun.eviction.clone())),
            },
            flight_record: None,
        };
        let all = [begun("a", 1), begun("a", 2), begun("b", 2), begun("b", 3)];
        let mut text = String::new();
        for begun in &all {
            text += &(serde_json::to_string(begun).unwrap() + "\n");
        }
        for (id, begun) in [(1, &all[0]), (2, &all[2])] {
            text += &(serde_json::to_string(&event(id, begun)).unwrap() + "\n");
        }
        fs::write(&path, text).unwrap();
        let history = read(&path, 10).unwrap();
        assert_eq!(history.interrupted, [all[1].clone(), all[3].clone()]);
        assert_eq!((history.events.len(), history.skipped), (2, 0));
    }
}
