use super::*;
use crate::{
    api::types::Eviction,
    eviction::status::{entry::About, wording::Sizes},
};

fn entry(uid: &str, killed: u64) -> Entry {
    let mut eviction = Eviction::default();
    eviction.pod.uid = uid.into();
    eviction.timeline.killed_nanos = Some(killed);
    Entry::of_eviction("2026-01-01T00:00:00Z", &eviction, None, &Sizes::default())
}

fn open(dir: &Path) -> Queue {
    let (queue, problems) = Queue::open(Some(dir));
    assert_eq!(problems, Vec::<String>::new());
    queue
}

fn uids(queue: &Queue) -> Vec<&str> {
    queue.entries().map(Entry::key).collect()
}

#[test]
fn what_waits_outlives_the_agent_in_its_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    for (uid, killed) in [("b", 1), ("a", 2), ("b", 3)] {
        assert!(matches!(queue.add(entry(uid, killed)), Added::Kept));
    }
    assert!(matches!(queue.add(entry("b", 3)), Added::Known));
    let mut queue = open(dir.path());
    assert_eq!(uids(&queue), ["b", "a", "b"]);
    let own: Vec<_> = queue.of("b").into_iter().map(|(_, e)| e.id).collect();
    assert_eq!(own, [entry("b", 1).id, entry("b", 3).id]);

    // Some of one is done, and all of another.
    let (first, mut told) = queue.of("b").remove(0);
    told.event_sent = true;
    queue.update(first, told).unwrap();
    let (number, _) = queue.of("a").remove(0);
    queue.done(number).unwrap();
    let mut queue = open(dir.path());
    assert_eq!(uids(&queue), ["b", "b"]);
    assert!(queue.of("b")[0].1.event_sent);
    assert!(queue.knows(&entry("a", 2).id));
    assert!(matches!(queue.add(entry("a", 2)), Added::Known));
    // Numbers go on.
    queue.add(entry("c", 4));
    assert_eq!(uids(&open(dir.path())), ["b", "b", "c"]);
}

#[test]
fn an_end_that_was_written_down_and_no_more_is_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    queue.add(entry("a", 1));
    let path = queue.path(1).unwrap();
    let kept = fs::read(&path).unwrap();
    queue.done(1).unwrap();
    fs::write(&path, kept).unwrap();
    let queue = open(dir.path());
    assert_eq!(uids(&queue), Vec::<&str>::new());
    assert!(!path.exists());
}

#[test]
fn torn_files_cost_nothing_but_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    for killed in 1..=3 {
        queue.add(entry("a", killed));
    }
    queue.done(1).unwrap();
    let queue_dir = dir.path().join(NAME);
    // An agent ended in the middle of a write, twice; and a disk was bad.
    let mut done = OpenOptions::new()
        .append(true)
        .open(queue_dir.join(DONE))
        .unwrap();
    done.write_all(b"\xff\xff\n0123").unwrap();
    for name in ["0000000000000004.json.new", "done.new"] {
        fs::write(queue_dir.join(name), b"{\"ver").unwrap();
    }
    fs::write(queue.path(2).unwrap(), b"\0\0\0").unwrap();
    fs::write(queue_dir.join("notes.txt"), b"an operator's").unwrap();

    let (mut queue, problems) = Queue::open(Some(dir.path()));
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].contains("0000000000000002.json"),
        "{problems:?}"
    );
    assert_eq!(uids(&queue), ["a"]);
    let names = |queue_dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(queue_dir)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let left = [
        "0000000000000002.unreadable",
        "0000000000000003.json",
        "done",
        "notes.txt",
    ];
    assert_eq!(names(&queue_dir), left);
    queue.done(3).unwrap();
    let queue = open(dir.path());
    assert!(queue.knows(&entry("a", 1).id) && queue.knows(&entry("a", 3).id));
}

#[test]
fn what_has_to_be_done_again_waits_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    queue.add(entry("a", 1));
    let (number, mut entry) = queue.of("a").remove(0);
    (entry.event_sent, entry.status_written) = (true, true);
    queue.done(number).unwrap();
    queue.again(entry.clone()).unwrap();
    let (number, again) = queue.of("a").remove(0);
    assert!(again.event_sent && !again.status_written && again.id == entry.id);
    queue.done(number).unwrap();
    assert_eq!(uids(&open(dir.path())), Vec::<&str>::new());
}

#[test]
fn it_is_bounded() {
    let mut queue = Queue::open(None).0;
    for killed in 0..MOST as u64 {
        assert!(matches!(queue.add(entry("a", killed)), Added::Kept));
    }
    assert!(matches!(queue.add(entry("b", 1)), Added::Full));
    queue.done(1).unwrap();
    assert!(matches!(queue.add(entry("b", 1)), Added::Kept));
    for number in 2..=MOST as u64 + 1 {
        queue.done(number).unwrap();
    }
    assert_eq!(queue.entries().count(), 0);
}

#[test]
fn of_those_that_are_done_the_last_are_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let queue_dir = dir.path().join(NAME);
    fs::create_dir(&queue_dir).unwrap();
    let ids =
        |from: usize, to: usize| -> String { (from..to).map(|n| format!("{n:016x}\n")).collect() };
    fs::write(queue_dir.join(DONE), ids(0, 2 * REMEMBERED - 1)).unwrap();
    let mut queue = open(dir.path());
    let last = entry("a", 1);
    queue.add(last.clone());
    queue.done(1).unwrap();
    let text = fs::read_to_string(queue_dir.join(DONE)).unwrap();
    let kept = ids(REMEMBERED, 2 * REMEMBERED - 1) + &last.id + "\n";
    assert!(text == kept, "{} lines", text.lines().count());
    assert!(open(dir.path()).knows(&last.id));
}

#[test]
fn without_room_on_the_disk_it_is_told_nevertheless() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    // In the way of the directory.
    fs::write(dir.path().join(NAME), b"").unwrap();
    assert!(matches!(queue.add(entry("a", 1)), Added::Forgetful(_)));
    assert_eq!(uids(&queue), ["a"]);
    assert!(matches!(
        &queue.of("a")[0].1.about,
        About::Pod { pod, .. } if pod.uid == "a"
    ));
    queue.done(1).unwrap_err();
    assert_eq!(uids(&queue), Vec::<&str>::new());
}

#[test]
fn a_queue_of_version_0_1_0_is_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    let mut written = entry("a", 1);
    written.event_sent = true;
    queue.add(written.clone());
    drop(queue);
    let old = dir.path().join(OLD_NAME);
    fs::rename(dir.path().join(NAME), &old).unwrap();
    let path = old.join("0000000000000001.json");
    let text = fs::read_to_string(&path).unwrap();
    let text = text
        .replace("eventSent", "told")
        .replace("statusWritten", "marked");
    assert!(text.contains(r#""told":true,"marked":false"#), "{text}");
    fs::write(&path, text).unwrap();

    let queue = open(dir.path());
    assert_eq!(queue.of("a"), [(1, written)]);
    assert!(!old.exists());
}
