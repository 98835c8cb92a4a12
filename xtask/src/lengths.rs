//! The length of files: past [`MOST`] lines, a file says in its first lines why it is longer.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::sources;

/// As many lines as a file has without a reason.
const MOST: usize = 400;
/// Where a longer file gives its reason, in a comment with [`REASON`].
const FIRST_LINES: usize = 10;
/// What such a comment says.
const REASON: &str = "400 lines";
/// Where the workspace's files are.
const PARTS: &[&str] = &["agent", "ebpf", "tests", "xtask"];

/// Fails with one line for each file that is too long without a reason.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut long = Vec::new();
    for part in PARTS {
        for source in sources::below(root, part, sources::RUST)? {
            let lines = source.text.lines().count();
            if lines > MOST && !has_reason(&source.text) {
                long.push(format!("  {}:1: {lines} lines", source.path.display()));
            }
        }
    }
    ensure!(
        long.is_empty(),
        "{} files have more than {MOST} lines: split them, or say `More than {REASON}: ...` in a comment in \
         their first {FIRST_LINES} lines:\n{}",
        long.len(),
        long.join("\n")
    );
    Ok(())
}

fn has_reason(text: &str) -> bool {
    text.lines()
        .take(FIRST_LINES)
        .any(|line| line.starts_with("//") && line.contains(REASON))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_long_file_needs_a_reason() {
        let root = tempfile::tempdir().unwrap();
        for part in PARTS {
            fs::create_dir_all(root.path().join(part)).unwrap();
        }
        let file = root.path().join("agent/long.rs");
        let write = |first: &str, lines: usize| {
            fs::write(&file, format!("{first}\n{}", "// x\n".repeat(lines - 1))).unwrap();
        };
        write("//! Facts.", MOST);
        check(root.path()).unwrap();
        write("//! Facts.", MOST + 1);
        let error = check(root.path()).unwrap_err().to_string();
        assert!(error.contains("agent/long.rs:1: 401 lines"), "{error}");
        write("//! More than 400 lines: one table.", MOST + 1);
        check(root.path()).unwrap();
    }
}
