//! Runs the binary and reads what it prints.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

pub(crate) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/plan")
        .join(name)
}

/// Runs the binary in the directory of the files, with `stdin`.
pub(crate) fn podwarden(arguments: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_podwarden"))
        .args(arguments)
        .current_dir(file(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end without reading.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Standard output of a run without an error.
pub(crate) fn printed(arguments: &[&str]) -> String {
    let output = podwarden(arguments, "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout).to_owned()
}

/// `path/file = value` of the tree.
pub(crate) fn tree(stdout: &str) -> Vec<String> {
    let report: Value = serde_json::from_str(stdout).unwrap();
    let rows = report["tree"].as_array().unwrap().iter();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.inspect(|row| assert!(!text(row, "reason").is_empty(), "{row}"))
        .map(|row| {
            let [path, file, value] = ["path", "file", "value"].map(|key| text(row, key));
            format!("{path}/{file} = {value}")
        })
        .collect()
}

/// What `-o json` prints.
pub(crate) fn json(arguments: &[&str], stdin: &str) -> Value {
    let output = podwarden(arguments, stdin);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
