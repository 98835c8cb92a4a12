//! Errors as text.

/// An error with all its sources, on one line. Many libraries' errors say in their own text what their
/// source says: nothing is said twice.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        let more = e.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = e.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::chain;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    #[test]
    fn every_cause_is_said_once() {
        let layers = [
            "the file x",
            "open it: no right",
            "no right",
            "it is locked",
        ];
        let error = layers
            .into_iter()
            .rev()
            .fold(None, |source, text| Some(Box::new(Layer { text, source })));
        let text = chain(&error.unwrap());
        assert_eq!(text, "the file x: open it: no right: it is locked");
    }
}
