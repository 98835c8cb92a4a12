use super::*;

const SHAPE: Shape = Shape {
    kind: 6,
    key: 4,
    value: 232,
    entries: 4096,
    flags: 0,
};

#[test]
fn different_roots_have_different_names_without_dots() {
    let roots = [
        "/",
        "/a",
        "/a/b",
        "/a%2Fb",
        "/a%b",
        "/a.b",
        "/a-b",
        "/podwarden.slice",
    ];
    let names: std::collections::BTreeSet<_> = roots.iter().map(|root| escaped(root)).collect();
    assert_eq!(names.len(), roots.len());
    for name in names {
        assert!(!name.contains(['/', '.']) && !name.is_empty(), "{name}");
    }
    assert_eq!(escaped("a/b/"), escaped("/a/b"), "the same root");
    assert_eq!(escaped("/x.slice"), "%2Fx%2Eslice");
}

#[test]
fn every_number_of_a_map_matters() {
    let wanted = [("accounts", SHAPE), ("tracked", SHAPE)];
    assert_eq!(difference(&wanted, &[Some(SHAPE), Some(SHAPE)]), None);
    for other in [
        Shape { kind: 2, ..SHAPE },
        Shape { key: 8, ..SHAPE },
        Shape {
            value: 240,
            ..SHAPE
        },
        Shape {
            entries: 8192,
            ..SHAPE
        },
        Shape { flags: 1, ..SHAPE },
    ] {
        let found = [Some(SHAPE), Some(other)];
        let why = difference(&wanted, &found).expect("they differ");
        assert!(why.starts_with("tracked is"), "{why}");
    }
}

#[test]
fn nothing_is_a_beginning_and_a_part_is_not() {
    let wanted = [("accounts", SHAPE), ("tracked", SHAPE)];
    assert_eq!(difference(&wanted, &[None, None]), None);
    let why = difference(&wanted, &[Some(SHAPE), None]);
    assert_eq!(why.as_deref(), Some("tracked is missing"));
}

#[test]
fn what_is_no_bpf_file_system_is_told_with_its_remedy() {
    let dir = std::env::temp_dir();
    let place = Place {
        bpf_fs: dir.clone(),
        cgroup_root: "/".to_owned(),
        hierarchy: 0,
    };
    let error = Pins::prepare(&place, &[])
        .expect_err("it is none")
        .to_string();
    assert!(error.contains("mount -t bpf") && error.contains(&dir.display().to_string()));
    assert!(!dir.join("podwarden").exists(), "something was made there");
}
