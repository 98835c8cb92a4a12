//! What is refused of objects that make no sense. Values only.

use serde_json::Value;

use super::refusal::Refusal;

/// An object has the namespace and the name of its path, as far as it says what it has.
pub(super) fn named_as(object: &Value, namespace: &str, name: Option<&str>) -> Result<(), Refusal> {
    let differs = |field: &str, of_path: &str| {
        let own = object["metadata"][field].as_str().unwrap_or_default();
        !own.is_empty() && own != of_path
    };
    if differs("namespace", namespace) || name.is_some_and(|name| differs("name", name)) {
        let message =
            "the namespace or name of the provided object does not match that of the request";
        return Err(Refusal::new(400, "BadRequest", message));
    }
    Ok(())
}

/// An Event is in the namespace of what it is about, or in `default` where that has none (`legacyValidateEvent`
/// of Kubernetes `pkg/apis/core/validation/events.go`).
pub(super) fn about_its_own(event: &Value, namespace: &str) -> Result<(), Refusal> {
    let about = event["involvedObject"]["namespace"].as_str();
    let about = about.filter(|about| !about.is_empty()).unwrap_or("default");
    if about == namespace {
        return Ok(());
    }
    let message = "involvedObject.namespace: Invalid value: does not match event.namespace";
    Err(Refusal::new(422, "Invalid", message))
}
