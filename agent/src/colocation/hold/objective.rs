//! The wait that is too long for a pod.

use std::time::Duration;

use podwarden_policy::{Pod, colocation::class::WAIT_OBJECTIVE_ANNOTATION};

use crate::config::WaitObjective;

/// The wait that is too long for a pod by its annotation, `None` without one; or why it has no effect.
pub fn objective(pod: &Pod) -> Result<Option<Duration>, String> {
    let Some(text) = &pod.colocation.wait_objective else {
        return Ok(None);
    };
    let read = text.parse::<WaitObjective>();
    read.map(|objective| Some(objective.0)).map_err(|error| {
        let shown: String = text.chars().take(32).collect();
        format!(
            "may wait as long as pods without metadata.annotations[{WAIT_OBJECTIVE_ANNOTATION}]: it is \
             `{shown}`: {error}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_without_effect_is_named_with_its_annotation_and_value() {
        for (text, expected) in [
            ("2ms", Ok(Some(Duration::from_millis(2)))),
            ("0", Err("`0`")),
            ("0s", Err("`0s`")),
            ("99us", Err("`99us`")),
            ("2s", Err("`2s`")),
            ("-5ms", Err("`-5ms`")),
            ("5", Err("`5`")),
            ("", Err("``")),
            ("soon", Err("`soon`")),
            ("\u{2028}", Err("annotations")),
        ] {
            let mut pod = Pod::default();
            pod.colocation.wait_objective = Some(text.to_owned());
            let found = objective(&pod);
            match expected {
                Ok(expected) => assert_eq!(found, Ok(expected), "{text}"),
                Err(shown) => {
                    let error = found.unwrap_err();
                    assert!(
                        error.contains(shown) && error.contains(WAIT_OBJECTIVE_ANNOTATION),
                        "{error}"
                    );
                }
            }
        }
    }
}
