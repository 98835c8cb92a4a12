//! What an API server answers when it refuses: a `Status`.

use serde_json::{Value, json};

use super::store::Key;

/// What the server answers instead of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// HTTP status.
    pub(crate) code: u16,
    /// `reason` of the Status.
    pub(crate) reason: &'static str,
    /// `message` of the Status.
    pub(crate) message: String,
    /// Seconds, in `Retry-After` and in the Status.
    pub(crate) retry_after: Option<u32>,
    /// `details.causes` of the Status: reason and message.
    pub(crate) cause: Option<(&'static str, &'static str)>,
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            code,
            reason,
            message,
            retry_after: None,
            cause: None,
        }
    }

    /// An eviction for which a disruption budget has no room (`createTooManyRequestsError` and `checkAndDecrement` of
    /// Kubernetes `pkg/registry/core/pod/storage/eviction.go`).
    pub(super) fn of_budget(seconds: u32) -> Self {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        let cause = "The disruption budget web needs 1 healthy pods and has 1 currently";
        Self {
            retry_after: Some(seconds),
            cause: Some(("DisruptionBudget", cause)),
            ..Self::new(429, "TooManyRequests", message)
        }
    }

    /// `NewResourceExpired` of apimachinery `pkg/api/errors`.
    pub(super) fn expired(asked: u64, least: u64) -> Self {
        Self::new(
            410,
            "Expired",
            format!("too old resource version: {asked} ({least})"),
        )
    }

    /// `NewTooLargeResourceVersionError` of apiserver `pkg/storage/errors.go`.
    pub(super) fn too_large(asked: u64, now: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {now}");
        Self {
            retry_after: Some(1),
            ..Self::new(504, "Timeout", message)
        }
    }

    pub(super) fn conflict(key: &Key, why: &str) -> Self {
        let (resource, _, name) = key;
        let message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}");
        Self::new(409, "Conflict", message)
    }

    pub(crate) fn not_found(key: &Key) -> Self {
        let (resource, _, name) = key;
        Self::new(404, "NotFound", format!("{resource} \"{name}\" not found"))
    }

    /// As the server writes it.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if self.reason.is_empty() {
            status["reason"].take();
        }
        if let Some(seconds) = self.retry_after {
            status["details"] = json!({"retryAfterSeconds": seconds});
        }
        if let Some((reason, message)) = self.cause {
            status["details"]["causes"] = json!([{"reason": reason, "message": message}]);
        }
        status
    }
}
