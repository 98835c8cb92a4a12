//! JSON -> types of the API, with the field in errors.

use serde::Deserialize;

use super::Problem;

/// Reads `text`, which is at `within` of its object: empty for the whole, else with the dot after it.
///
/// One deserializer for all who read pods: a `PodSpec` has hundreds of types, of each of which the compiler makes code for
/// each deserializer.
pub(super) fn from_json<'a, T: Deserialize<'a>>(text: &'a str, within: &str) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let said = error.inner().to_string();
        // The text is one line, which is not the author's.
        let place = format!(
            " at line {} column {}",
            error.inner().line(),
            error.inner().column()
        );
        Problem::Type {
            field: format!("{within}{}", error.path()),
            problem: said.strip_suffix(&place).unwrap_or(&said).to_owned(),
        }
    })
}
