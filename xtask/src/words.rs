//! Words that the project's English does without: a sentence says which part acts.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::sources;

/// In two pieces, so that this file has none of them.
const WORDS: [&str; 3] = [
    concat!("no", "body"),
    concat!("some", "body"),
    concat!("who", "ever"),
];
/// Where text of the project is, and how the names of such files end.
const PARTS: [(&str, &[&str]); 5] = [
    ("agent", sources::RUST),
    ("ebpf", sources::RUST),
    ("tests", sources::RUST),
    ("xtask", sources::RUST),
    ("deploy", &["md", "yaml"]),
];

/// Fails with one line for each place that has such a word.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut found = Vec::new();
    for (part, extensions) in PARTS {
        for source in sources::below(root, part, extensions)? {
            for (number, line) in (1..).zip(source.text.lines()) {
                let word = words(line).find(|word| WORDS.contains(&word.as_str()));
                found.extend(
                    word.map(|word| format!("  {}:{number}: {word}", source.path.display())),
                );
            }
        }
    }
    ensure!(
        found.is_empty(),
        "{} places speak of persons where a part of the program or of the node acts; name it:\n{}",
        found.len(),
        found.join("\n")
    );
    Ok(())
}

fn words(line: &str) -> impl Iterator<Item = String> {
    line.split(|c: char| !c.is_alphanumeric())
        .map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_sentence_names_what_acts() {
        let root = tempfile::tempdir().unwrap();
        for (part, _) in PARTS {
            fs::create_dir_all(root.path().join(part)).unwrap();
        }
        let [word, ..] = WORDS;
        let write = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
        write("agent/a.rs", "//! Facts.\n// The reactor waits.\n");
        write("deploy/tests.json", word);
        check(root.path()).unwrap();
        write(
            "deploy/a.md",
            &format!("Facts.\n{}s\n{}: waits.", word, word.to_uppercase()),
        );
        let error = check(root.path()).unwrap_err().to_string();
        assert!(error.contains("1 places"), "{error}");
        assert!(error.contains("deploy/a.md:3"), "{error}");
    }
}
