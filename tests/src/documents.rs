//! Every command of the documents is one that the programs know. Those that need a cluster are run by the case
//! `kubernetes_installs`.

use std::fmt::Write as _;

use clap::Parser as _;
use podwarden::cli::Cli;
use podwarden::cli::kubectl::Plugin;
use xtask::documents::{Command, commands};
use xtask::paths::Workspace;

/// What stands for something of the reader's own.
fn filled_in(word: &str) -> &str {
    match word {
        "ID" => "4711",
        "SECONDS" => "10",
        word => word,
    }
}

/// Parses those that are to be run as they stand, and what they say where they cannot be.
fn unknown(of: impl Fn(&Command) -> Option<Result<(), clap::Error>>) -> String {
    let commands = commands(&Workspace::locate()).unwrap();
    let mut unknown = String::new();
    let mut parsed = 0;
    for command in commands.iter().filter(|command| command.in_block) {
        match of(command) {
            None => {}
            Some(Ok(())) => parsed += 1,
            Some(Err(error)) if !error.use_stderr() => parsed += 1,
            Some(Err(error)) => {
                let (file, words) = (command.file.display(), command.words.join(" "));
                writeln!(unknown, "{file}:{}: {words}\n{error}", command.line).unwrap();
            }
        }
    }
    assert!(parsed > 0, "no such command is in the documents");
    unknown
}

#[test]
fn commands_of_the_agent_are_known() {
    let found = unknown(|command| {
        let mut words: Vec<&str> = command.words.iter().map(|word| filled_in(word)).collect();
        // A container's command stands after its runner's.
        if let ("kubectl", Some(end)) = (words[0], words.iter().position(|word| *word == "--")) {
            words.drain(..=end);
        }
        (words.first() == Some(&"podwarden")).then(|| Cli::try_parse_from(words).map(drop))
    });
    assert!(found.is_empty(), "{found}");
}

#[test]
fn commands_of_the_plugin_are_known() {
    let found = unknown(|command| {
        let words: Vec<&str> = command.words.iter().map(|word| filled_in(word)).collect();
        let is_plugin = words.starts_with(&["kubectl", "podwarden"]);
        is_plugin.then(|| Plugin::try_parse_from(&words[1..]).map(drop))
    });
    assert!(found.is_empty(), "{found}");
}
