//! Files that are no manifests of a sane operator's.

use super::*;

/// Each separator began a document with all the lines before it: 100 KB of them took 400 MB.
#[test]
fn documents_are_bounded_and_one_at_a_time() {
    let text = "---\n".repeat(25_000);
    let mut longest = 0;
    let mut count = 0;
    for document in manifest::documents(&text) {
        longest = longest.max(document.len());
        count += 1;
    }
    assert!(
        count >= 25_000 - 1 && longest <= 2 * text.len(),
        "{count}, {longest}"
    );
    let parsed = manifest::parse(&text);
    let [(document, Err(problem))] = &parsed[..] else {
        panic!("{} results", parsed.len());
    };
    assert_eq!(*document, manifest::MOST_DOCUMENTS + 1);
    assert!(problem.to_string().contains("1024"), "{problem}");
    let most = format!("{}\n---\n", minimal("a", "1")).repeat(manifest::MOST_DOCUMENTS);
    let parsed = manifest::parse(most.trim_end_matches("---\n"));
    assert_eq!(parsed.len(), manifest::MOST_DOCUMENTS);
    assert!(parsed.iter().all(|(_, pod)| pod.is_ok()));
}

/// To open a FIFO waits for its writer, for ever.
#[test]
fn fifos_and_devices_are_refused() {
    let (temp, dir) = dir_with(&[("a.yaml", &minimal("a", "1"))]);
    let fifo = temp.path().join("fifo.yaml");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("/dev/zero", temp.path().join("zero.yaml")).unwrap();
    let set = dir.read(&Manifests::default()).unwrap();
    assert_eq!(names(&set), ["a"]);
    assert_eq!(set.errors.len(), 2, "{:?}", set.errors);
    for error in &set.errors {
        assert!(error.to_string().contains("regular files"), "{error}");
    }
}

/// What a deployment tool does: a new directory in the place of the old one.
#[tokio::test]
async fn a_directory_that_is_replaced_is_watched_again() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("pods");
    let put = |name: &str| {
        let path = place.join(format!("{name}.yaml"));
        fs::write(path, minimal(name, name)).unwrap();
    };
    fs::create_dir(&place).unwrap();
    put("a");
    let (mut watcher, mut pods) = ManifestDir::new(&place).watch().unwrap();
    let running = tokio::spawn(async move {
        while watcher.follow().await.is_err() {
            watcher.again().await;
        }
    });
    fs::rename(&place, home.path().join("old")).unwrap();
    fs::create_dir(&place).unwrap();
    put("b");
    expect(&mut pods, &["b"]).await;
    put("c");
    expect(&mut pods, &["b", "c"]).await;
    drop(pods);
    running.await.unwrap();
}
