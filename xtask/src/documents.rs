//! The commands that the documents tell a reader to run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use shlex::Shlex;

use crate::paths::Workspace;

/// A command of a code block or of a span of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The document, below the workspace.
    pub file: PathBuf,
    /// Its line, counted from 1.
    pub line: usize,
    /// Program and arguments.
    pub words: Vec<String>,
    /// It stands in a block of its own, to be run as it is.
    pub in_block: bool,
}

/// Programs whose commands are known; a line of a block that begins otherwise is output or a picture.
const PROGRAMS: [&str; 7] = [
    "podwarden",
    "cargo",
    "kubectl",
    "helm",
    "skopeo",
    "ln",
    "ssh",
];

/// Those of `README.md` and of `deploy/docs`, in order.
pub fn commands(workspace: &Workspace) -> Result<Vec<Command>> {
    let docs = workspace.root().join("deploy/docs");
    let mut files = vec![workspace.root().join("README.md")];
    for entry in fs::read_dir(&docs).with_context(|| format!("list {}", docs.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let file = path.strip_prefix(workspace.root()).unwrap_or(&path);
        found.extend(in_document(file, &text));
    }
    Ok(found)
}

fn in_document(file: &Path, text: &str) -> Vec<Command> {
    let mut found = Vec::new();
    let mut block: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        let mut add = |line: usize, text: &str, in_block| {
            let words = words(text);
            let is_command = words
                .first()
                .is_some_and(|word| PROGRAMS.contains(&word.as_str()));
            if is_command && words.len() > 1 {
                let file = file.to_owned();
                found.push(Command {
                    file,
                    line,
                    words,
                    in_block,
                });
            }
        };
        match (&mut block, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                block = Some(Block {
                    is_shell: language.is_empty(),
                    lines: Vec::new(),
                });
            }
            (Some(whole), Some(_)) => {
                for (number, text) in whole.commands() {
                    add(number, text, true);
                }
                block = None;
            }
            (Some(whole), None) => whole.lines.push((index + 1, line)),
            // What is between two backticks.
            (None, None) => {
                for span in line.split('`').skip(1).step_by(2) {
                    add(index + 1, span, false);
                }
            }
        }
    }
    found
}

/// A code block.
struct Block<'a> {
    /// It names no language.
    is_shell: bool,
    /// With their numbers.
    lines: Vec<(usize, &'a str)>,
}

impl<'a> Block<'a> {
    /// Lines with a prompt; all where none has one: the others are output.
    fn commands(&self) -> Vec<(usize, &'a str)> {
        let with_prompt = self.lines.iter().filter_map(|(number, line)| {
            let command = line.strip_prefix("$ ")?;
            Some((*number, command))
        });
        let with_prompt: Vec<_> = with_prompt.collect();
        match (self.is_shell, with_prompt.is_empty()) {
            (false, _) => Vec::new(),
            (true, true) => self.lines.clone(),
            (true, false) => with_prompt,
        }
    }
}

/// As a shell splits it, without its comment; a quoted word is one. A quote that is not closed ends with the text: what is
/// in it belongs to the command all the same.
fn words(text: &str) -> Vec<String> {
    for close in ["", "'", "\""] {
        let text = format!("{text}{close}");
        let mut words = Shlex::new(&text);
        let all = words.by_ref().collect();
        if !words.had_error {
            return all;
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_a_shells() {
        assert_eq!(
            words("podwarden top  --once # now"),
            ["podwarden", "top", "--once"]
        );
        assert_eq!(
            words("ln -s \"$(command -v x)\" /b#c"),
            ["ln", "-s", "$(command -v x)", "/b#c"]
        );
        assert_eq!(words("# kubectl"), Vec::<String>::new());
        assert_eq!(words("cargo run 'a b"), ["cargo", "run", "a b"]);
        assert_eq!(words("cargo run \"a b"), ["cargo", "run", "a b"]);
    }

    #[test]
    fn blocks_with_a_language_and_output_are_no_commands() {
        let text = "See `podwarden top --once` and `podwarden`.\n\
                    ```\n$ cargo xtask demo\nkubectl does it\n```\n\
                    ```\nkubectl get pods\nall: pods\n```\n\
                    ```yaml\nhelm: x y\n```\n";
        let found = in_document(Path::new("a.md"), text);
        let lines: Vec<_> = found
            .iter()
            .map(|command| (command.line, command.words[1].as_str(), command.in_block))
            .collect();
        assert_eq!(
            lines,
            [(1, "top", false), (3, "xtask", true), (7, "get", true)]
        );
    }

    #[test]
    fn the_documents_have_some() {
        let found = commands(&Workspace::locate()).unwrap();
        for program in ["podwarden", "cargo", "kubectl", "helm"] {
            assert!(
                found.iter().any(|command| command.words[0] == program),
                "{program}"
            );
        }
    }
}
