//! Events of many nodes, in the order of their times.

use serde_json::Value;

use super::agents::Answers;
use crate::{
    api::types::Event,
    cli::{
        events::text as words,
        output::{self, Format},
    },
};

/// The text, and the nodes without an answer; of one type alone where one is named.
pub(super) fn text(
    answers: Answers,
    format: Format,
    of_type: Option<&str>,
) -> anyhow::Result<(String, Vec<(String, String)>)> {
    let mut failed = Vec::new();
    let mut events: Vec<(String, String, Value)> = Vec::new();
    for (node, answer) in answers {
        let read = answer.and_then(|text| read(&text, of_type).map_err(|e| e.to_string()));
        match read {
            Ok(read) => events.extend(read.into_iter().map(|event| {
                let time = event["time"].as_str().unwrap_or_default().to_owned();
                (time, node.clone(), event)
            })),
            Err(problem) => failed.push((node, problem)),
        }
    }
    // Times are RFC 3339 in UTC: their order is that of their texts. Events of one node stay in theirs.
    events.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    let width = events.iter().map(|(_, node, _)| node.chars().count()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for (_, node, mut event) in events {
        match format {
            Format::Json => {
                event["node"] = node.into();
                text.push_str(&serde_json::to_string(&event)?);
            }
            Format::Table => {
                let node = output::printable(&node);
                text.push_str(&format!("{node:width$}  {}", line(event)));
            }
        }
        text.push('\n');
    }
    Ok((text, failed))
}

/// One event a line.
fn read(text: &[u8], of_type: Option<&str>) -> serde_json::Result<Vec<Value>> {
    let values = serde_json::Deserializer::from_slice(text).into_iter::<Value>();
    let values = values.filter(|value| {
        let is_of = |value: &Value| of_type.is_none_or(|of_type| value["type"] == of_type);
        value.as_ref().map_or(true, is_of)
    });
    values.collect()
}

/// As `podwarden events` prints it; an event of a newer agent by its type.
fn line(event: Value) -> String {
    let time = output::moment(event["time"].as_str().unwrap_or_default());
    let named = output::printable(event["type"].as_str().unwrap_or_default());
    match serde_json::from_value::<Event>(event) {
        Ok(event) => words::lines(&event),
        Err(_) => format!("{time} {named} (of another version; -o json has all of it)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::EventKind;

    fn event(second: u32, kind: EventKind) -> String {
        let event = Event {
            id: u64::from(second),
            time: format!("2026-11-23T10:00:{second:02}Z"),
            pod: None,
            kind,
        };
        serde_json::to_string(&event).unwrap() + "\n"
    }

    fn degraded(message: &str) -> EventKind {
        EventKind::Degraded {
            message: message.to_owned(),
        }
    }

    fn answers() -> Answers {
        let eviction = EventKind::Eviction(Box::default());
        let first = event(1, degraded("first")) + &event(3, eviction);
        let newer = "{\"id\":9,\"time\":\"2026-11-23T10:00:04Z\",\"type\":\"unheardOf\"}\n";
        let second = event(2, degraded("second")) + newer;
        [
            ("node-1", Ok(first.into_bytes())),
            ("b", Ok(second.into_bytes())),
            ("c", Ok(b"no JSON".to_vec())),
        ]
        .map(|(node, answer)| (node.to_owned(), answer))
        .into()
    }

    #[test]
    fn events_of_all_nodes_are_in_the_order_of_their_times() {
        let (text, failed) = text(answers(), Format::Table, None).unwrap();
        let found = ["first", "second", "EVICT", "unheardOf"]
            .map(|word| text.to_uppercase().find(&word.to_uppercase()));
        assert!(found.is_sorted() && found[0].is_some(), "{text}");
        assert!(
            text.contains("\nb       2026") || text.contains("\nb       10:"),
            "{text}"
        );
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].0, "c");
    }

    #[test]
    fn evictions_are_picked_and_json_names_their_nodes() {
        let (text, _) = text(answers(), Format::Json, Some("eviction")).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["node"], &value["type"]),
            (&"node-1".into(), &"eviction".into())
        );
    }
}
