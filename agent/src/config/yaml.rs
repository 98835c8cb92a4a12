//! From YAML to types, with file, line and field in the errors.

use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde_saphyr::Error;

use super::{
    API_VERSION, ConfigError, KIND,
    raw::{OLD_NAMES, RawConfig, Text},
};

/// Parses the YAML of a configuration and checks that it is meant for this agent.
pub(super) fn parse(name: &str, text: &str) -> Result<RawConfig, ConfigError> {
    let raw: RawConfig = from_yaml(name, text)?;
    identity(name, "apiVersion", raw.api_version.as_ref(), API_VERSION)?;
    identity(name, "kind", raw.kind.as_ref(), KIND)?;
    Ok(raw)
}

/// Parses YAML; `name` is what errors call the file.
pub(crate) fn from_yaml<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, ConfigError> {
    // One line per error: the agent's log is read by the line.
    let options = serde_saphyr::options! { with_snippet: false };
    let mut path = String::new();
    let result = serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
        serde_path_to_error::deserialize(yaml).map_err(|error| {
            path = error.path().to_string();
            error.into_inner()
        })
    });
    // The value of a `Spanned` is a field of it.
    let field = path.strip_suffix(".value").unwrap_or(&path);
    result.map_err(|error| from_error(name, field, error))
}

fn from_error(name: &str, field: &str, error: Error) -> ConfigError {
    let location = error.location();
    let origin = origin(name, location.map_or(0, |at| at.line()));
    let field = field.to_owned();
    match error {
        // Of the types of the keys: see `values`.
        Error::Message { msg: problem, .. } if !field.is_empty() => ConfigError::Value {
            origin,
            field,
            problem,
        },
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => ConfigError::Value {
            origin,
            field,
            problem: format!("is `{variant}`: no such value; write {}", one_of(&expected)),
        },
        Error::DuplicateMappingKey { key, .. } => ConfigError::Value {
            origin,
            field: key.unwrap_or(field),
            problem: "is written twice; remove one of the two".to_owned(),
        },
        Error::SerdeUnknownField {
            field,
            mut expected,
            location,
        } => {
            expected.retain(|key| !OLD_NAMES.contains(key));
            ConfigError::Syntax {
                origin,
                source: Box::new(Error::SerdeUnknownField {
                    field,
                    expected,
                    location,
                }),
            }
        }
        error => ConfigError::Syntax {
            origin,
            source: Box::new(error),
        },
    }
}

/// `a, b or c`.
fn one_of(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        words => words.concat(),
    }
}

fn identity(
    name: &str,
    field: &'static str,
    found: Option<&Text>,
    expected: &'static str,
) -> Result<(), ConfigError> {
    const REMEDY: &str =
        "begin the file with `apiVersion: podwarden.io/v1alpha1` and `kind: AgentConfig`";
    let wrong = format!("this version reads {expected}; {REMEDY}");
    match found {
        Some(text) if text.value == expected => Ok(()),
        Some(text) => Err(ConfigError::value(name, field, text, wrong)),
        None => Err(ConfigError::Value {
            origin: name.to_owned(),
            field: field.to_owned(),
            problem: format!("is not set: {wrong}"),
        }),
    }
}

impl ConfigError {
    /// A value that was read; `wrong` says what is wrong with it, and what to write instead.
    pub(crate) fn value(name: &str, field: &str, found: &Text, wrong: impl Display) -> Self {
        Self::Value {
            origin: origin(name, found.referenced.line()),
            field: field.to_owned(),
            problem: format!("is `{}`: {wrong}", found.value),
        }
    }
}

/// File and line of a value; no line where it is 0.
pub(crate) fn origin(name: &str, line: u64) -> String {
    match line {
        0 => name.to_owned(),
        line => format!("{name}:{line}"),
    }
}
