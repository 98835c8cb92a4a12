use std::fs;

use tempfile::TempDir;

use super::*;

const TABLE_TEXT: &str = "\
//! | module | purpose |
//! |---|---|
//! | `top` | everything |
//! | `api` | the server |
//! | `low` | facts |
//! | `api::types` | data |

pub mod api;
pub mod low;
pub mod top;
";

/// A small agent whose imports go down, and one file more.
fn tree(path: &str, text: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let files = [
        ("lib.rs", TABLE_TEXT),
        ("main.rs", "fn main() { agent::top::run() }"),
        ("top.rs", "use crate::{api::types::Pod, low::{self, fact}};"),
        ("api/mod.rs", "pub mod types; use self::types::Pod;"),
        ("api/types.rs", "pub struct Pod;"),
        ("low/mod.rs", "use crate::api::types::Pod; mod inner;"),
        (
            "low/inner.rs",
            "use super::fact; fn f() { self::g(); super::fact() }",
        ),
        (path, text),
    ];
    for (path, text) in files {
        let path = root.path().join(SOURCE).join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn error(path: &str, text: &str) -> String {
    let root = tree(path, text);
    check(root.path()).map_or_else(|error| error.to_string(), |()| String::new())
}

#[test]
fn imports_that_go_down_pass() {
    assert_eq!(error("low/other.rs", "use crate::api::types;"), "");
}

#[test]
fn a_planted_import_against_the_order_fails() {
    let text = error("low/other.rs", "\nuse crate::api::Server;");
    assert!(
        text.starts_with("1 imports go against the order in agent/src/lib.rs"),
        "{text}"
    );
    let line = "agent/src/low/other.rs:2: `crate::api::Server`: `api` stands above `low`";
    assert!(text.contains(line), "{text}");
}

#[test]
fn every_way_to_name_a_module_counts() {
    for (path, planted) in [
        (
            "low/a.rs",
            "use crate::{api::types::Pod, top::{run, self}};",
        ),
        ("low/a.rs", "pub use crate::top as renamed;"),
        ("low/a.rs", "use super::super::top;"),
        ("low/a.rs", "use crate::*;"),
        ("low/a.rs", "fn f() -> crate::top::T { todo!() }"),
        ("low/a.rs", "fn f() { let x = crate::api::published(); }"),
        ("low/a.rs", "fn f() { println!(\"{}\", crate::top::x()) }"),
        ("low/a.rs", "macro_rules! m { () => { $crate::top::x() } }"),
        (
            "low/a.rs",
            "struct S { #[serde(with = \"crate::top::x\")] f: u8 }",
        ),
        ("low/a.rs", "mod inner { use super::super::super::top; }"),
        ("low.rs", "use super::top::T;"),
        ("api/types/pod.rs", "use super::super::Server;"),
        ("low/a.rs", "use crate::unlisted::T;"),
        ("unlisted.rs", "use crate::low::T;"),
    ] {
        assert!(!error(path, planted).is_empty(), "{path}: {planted}");
    }
}

#[test]
fn tests_may_import_everything() {
    for (path, text) in [
        ("low/a.rs", "#[cfg(test)] mod tests { use crate::top::T; }"),
        ("low/a.rs", "#[cfg(test)] use crate::top::T;"),
        (
            "low/a.rs",
            "impl S { #[cfg(test)] fn f() { crate::top::f() } }",
        ),
        ("low/tests.rs", "use crate::top::T;"),
        ("low/tests/a.rs", "use crate::top::T;"),
        (
            "low/a.rs",
            "/// See [`crate::top`].\npub(in crate::low) fn f() {}",
        ),
    ] {
        assert_eq!(error(path, text), "", "{path}: {text}");
    }
    let root = tree("low/support.rs", "use crate::top::T;");
    let declares = root.path().join(SOURCE).join("low/mod.rs");
    fs::write(declares, "#[cfg(test)] mod support;").unwrap();
    check(root.path()).unwrap();
}
