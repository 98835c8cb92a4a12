//! The kustomize overlays: each makes what the chart makes with the preset of its name.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::chart::{Objects, objects, rendered, take_checksum};

fn overlays() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/kustomize")
}

/// What kubectl makes of a directory; `None` where there is no kubectl.
fn built(dir: &Path) -> Option<Objects> {
    let done = match Command::new("kubectl").arg("kustomize").arg(dir).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        done => done.unwrap(),
    };
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {said}", dir.display());
    let mut objects = objects(&String::from_utf8(done.stdout).unwrap());
    // Helm makes the release's namespace itself, so that the chart has none.
    let namespace = ("Namespace".to_owned(), "podwarden".to_owned());
    assert!(objects.remove(&namespace).is_some());
    Some(objects)
}

/// An overlay as an operator writes it, of the one `name` and the component `monitoring`.
fn monitored(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    // kustomize takes relative paths alone.
    let depth = dir.path().canonicalize().unwrap().components().count() - 1;
    let ours = overlays().canonicalize().unwrap();
    let path = |name: &str| "../".repeat(depth) + &ours.join(name).to_string_lossy()[1..];
    let lines = format!(
        "resources: [{}]\ncomponents: [{}]\n",
        path(name),
        path("monitoring")
    );
    fs::write(dir.path().join("kustomization.yaml"), lines).unwrap();
    dir
}

#[test]
fn each_overlay_is_the_chart_s_preset() {
    for name in ["observe", "enforce", "colocation"] {
        let dir = monitored(name);
        for (dir, presets) in [
            (overlays().join(name), &[name][..]),
            (dir.path().to_owned(), &[name, "monitoring"]),
        ] {
            let Some(mut built) = built(&dir) else {
                println!("skipped: there is no kubectl");
                return;
            };
            let mut wanted = rendered(presets);
            take_checksum(&mut wanted);
            for objects in [&mut built, &mut wanted] {
                boards(objects);
                objects.values_mut().for_each(without_blank_lines);
            }
            assert!(
                built.keys().eq(wanted.keys()),
                "{presets:?}: {:?}",
                built.keys()
            );
            for (key, object) in &wanted {
                assert_eq!(&built[key], object, "{presets:?} {key:?}");
            }
        }
    }
}

/// kustomize doubles line breaks of folded text, here of CEL, where they mean nothing.
fn without_blank_lines(value: &mut Value) {
    match value {
        Value::String(text) => {
            let lines = text.lines().filter(|line| !line.is_empty());
            *text = lines.collect::<Vec<_>>().join("\n");
        }
        Value::Array(all) => all.iter_mut().for_each(without_blank_lines),
        Value::Object(all) => all.values_mut().for_each(without_blank_lines),
        _ => {}
    }
}

/// Each board is text: as what it says.
fn boards(objects: &mut Objects) {
    let key = ("ConfigMap".to_owned(), "podwarden-dashboards".to_owned());
    let Some(boards) = objects.get_mut(&key) else {
        return;
    };
    for board in boards["data"].as_object_mut().unwrap().values_mut() {
        *board = serde_json::from_str(board.as_str().unwrap()).unwrap();
    }
}
