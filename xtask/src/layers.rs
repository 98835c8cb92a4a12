//! The order of imports: a module of the agent imports only modules that stand below it in the table of
//! `agent/src/lib.rs`.
//!
//! The source is parsed, so that grouped imports, paths in expressions, `super::` chains that leave a module,
//! re-exports, and paths in macros and attributes all count. Tests are left out: they may look at everything.

mod visit;

use std::collections::BTreeSet;
use std::path::{Component, Path};

use anyhow::{Context as _, Result, ensure};

use crate::sources::{self, Source};
use visit::{Import, imports, test_modules};

/// Where the agent's modules are.
const SOURCE: &str = "agent/src";
/// Where their order stands.
const TABLE: &str = "agent/src/lib.rs";

/// The modules of the table, top first.
struct Order(Vec<Vec<String>>);

impl Order {
    /// Reads the first column of the table in a crate's documentation.
    fn of(text: &str) -> Self {
        let names = text
            .lines()
            .filter_map(|line| line.strip_prefix("//! | `")?.split_once('`'))
            .map(|(name, _)| name.split("::").map(str::to_owned).collect());
        Self(names.collect())
    }

    /// The row of the module, or of the nearest module around it.
    fn row(&self, path: &[String]) -> Option<usize> {
        let rows = self.0.iter().enumerate();
        rows.filter(|(_, name)| path.starts_with(name))
            .max_by_key(|(_, name)| name.len())
            .map(|(row, _)| row)
    }

    fn name(&self, row: usize) -> String {
        self.0[row].join("::")
    }

    /// What is wrong with an import by `module`; `None` when it goes down.
    fn violation(&self, module: &[String], import: &Import) -> Option<String> {
        let Some(from) = self.row(module) else {
            return Some(format!("`{}` is not in the table", module.join("::")));
        };
        let Some(to) = self.row(&import.target) else {
            return Some(match import.target.first() {
                Some(name) => format!("`{name}` is not in the table"),
                None => "the crate itself is above every module".to_owned(),
            });
        };
        (to < from).then(|| format!("`{}` stands above `{}`", self.name(to), self.name(from)))
    }
}

/// Fails with one line for each import against the order.
pub(crate) fn check(root: &Path) -> Result<()> {
    let files = sources::below(root, SOURCE, sources::RUST)?;
    let table = files
        .iter()
        .find(|file| file.path == Path::new(TABLE))
        .with_context(|| format!("{TABLE} is missing"))?;
    let order = Order::of(&table.text);
    ensure!(!order.0.is_empty(), "{TABLE} has no table of modules");
    let wrong = violations(&order, &files)?;
    ensure!(
        wrong.is_empty(),
        "{} imports go against the order in {TABLE}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}

fn violations(order: &Order, files: &[Source]) -> Result<Vec<String>> {
    let parsed = files
        .iter()
        .filter_map(|file| Some((file, module(&file.path)?)))
        .map(|(file, module)| {
            let syntax = syn::parse_file(&file.text)
                .with_context(|| format!("parse {}", file.path.display()))?;
            Ok((file, module, syntax))
        })
        .collect::<Result<Vec<_>>>()?;
    let tests: BTreeSet<Vec<String>> = parsed
        .iter()
        .flat_map(|(_, module, syntax)| test_modules(module, syntax))
        .collect();
    let mut found = Vec::new();
    for (file, module, syntax) in &parsed {
        let ancestors = (1..=module.len()).map(|length| &module[..length]);
        if module.is_empty()
            || ancestors
                .into_iter()
                .any(|ancestor| tests.contains(ancestor))
        {
            continue;
        }
        for import in imports(module, syntax) {
            if let Some(rule) = order.violation(&import.module, &import) {
                found.push(format!(
                    "  {}:{}: `{}`: {rule}",
                    file.path.display(),
                    import.line,
                    import.shown
                ));
            }
        }
    }
    Ok(found)
}

/// The module that a file holds; `None` for the program's own `main.rs` and for tests.
fn module(path: &Path) -> Option<Vec<String>> {
    let inner = path.strip_prefix(SOURCE).ok()?.with_extension("");
    let mut names: Vec<String> = inner
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect();
    if names == ["main"] || names.iter().any(|name| name == "tests") {
        return None;
    }
    names.pop_if(|name| name == "mod" || name == "lib");
    Some(names)
}

#[cfg(test)]
mod tests;
