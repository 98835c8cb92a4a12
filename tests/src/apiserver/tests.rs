use std::io::{BufRead as _, Read as _};
use std::net::TcpStream;

use client::{SHOP, ask, get, head, kinds, pod, send, watch};

use super::*;

mod client;

#[test]
fn lists_pages_and_single_objects() {
    let server = ApiServer::start().unwrap();
    for name in ["a", "b", "c"] {
        server.create_pod("n1", pod(name)).unwrap();
    }
    server.create_pod("n2", pod("d")).unwrap();
    let (code, list) = get(&server, "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1");
    assert_eq!((code, list["items"].as_array().unwrap().len()), (200, 3));
    assert_eq!(list["metadata"]["resourceVersion"], "4");
    let (_, first) = get(&server, "/api/v1/pods?limit=3");
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = get(
        &server,
        &format!(
            "/api/v1/pods?limit=3&continue={}",
            token.replace('/', "%2F")
        ),
    );
    assert_eq!(second["items"][0]["metadata"]["name"], "d");
    assert!(second["metadata"]["continue"].is_null());
    // From the cache, a limit is no limit.
    let (_, whole) = get(&server, "/api/v1/pods?limit=1&resourceVersion=0");
    assert_eq!(whole["items"].as_array().unwrap().len(), 4);
    assert_eq!(get(&server, &format!("{SHOP}/a")).0, 200);
    let (code, status) = get(&server, &format!("{SHOP}/z"));
    assert_eq!((code, &status["reason"]), (404, &json!("NotFound")));
    assert_eq!(get(&server, "/api/v1/pods?resourceVersion=99").0, 504);
    let verbs: BTreeSet<_> = server
        .take_seen()
        .into_iter()
        .map(|seen| seen.verb)
        .collect();
    assert_eq!(verbs, BTreeSet::from(["get", "list"]));
}

#[test]
fn a_watch_tells_bookmarks_and_ends_in_time() {
    let server = ApiServer::start().unwrap();
    server.create_pod("n1", pod("a")).unwrap();
    server.manners(|m| m.bookmarks = Duration::from_millis(300));
    let (lines, ended) = watch(
        &server,
        "resourceVersion=0&timeoutSeconds=1&allowWatchBookmarks=true",
    );
    assert!(ended);
    assert_eq!(kinds(&lines)[..2], ["ADDED", "BOOKMARK"]);
    assert_eq!(lines[1]["object"]["metadata"]["resourceVersion"], "1");
    // None was asked for.
    let (lines, _) = watch(&server, "resourceVersion=1&timeoutSeconds=1");
    assert_eq!(lines, Vec::<Value>::new());
}

#[test]
fn a_watch_from_before_a_compaction_is_expired() {
    let server = ApiServer::start().unwrap();
    server.create_pod("n1", pod("a")).unwrap();
    server.compact();
    let (lines, _) = watch(&server, "resourceVersion=1&timeoutSeconds=1");
    assert_eq!(kinds(&lines), ["ERROR"]);
    assert_eq!(lines[0]["object"]["code"], 410);
    let (lines, _) = watch(&server, "resourceVersion=2&timeoutSeconds=1");
    assert_eq!(lines, Vec::<Value>::new());
}

#[test]
fn cut_watches_resumed_miss_nothing_and_what_is_told_twice_is_the_same() {
    let server = ApiServer::start().unwrap();
    for n in 0..40 {
        server.create_pod("n1", pod(&format!("p{n:02}"))).unwrap();
    }
    server.manners(|m| {
        m.cut_after = Some(6);
        m.repeat = true;
    });
    let (mut from, mut names, mut cuts) = (1_u64, Vec::new(), 0);
    while from < 40 {
        let (lines, ended) = watch(&server, &format!("resourceVersion={from}&timeoutSeconds=5"));
        cuts += u32::from(!ended);
        for line in lines {
            from = line["object"]["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap();
            names.push(
                line["object"]["metadata"]["name"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
            );
        }
    }
    assert!(names.is_sorted(), "{names:?}");
    assert!(names.len() > 39, "nothing was told twice");
    names.dedup();
    assert_eq!(names.len(), 39);
    assert!(cuts > 0, "no connection was cut");
}

#[test]
fn only_known_tokens_are_let_in() {
    let server = ApiServer::start().unwrap();
    server.manners(|m| m.tokens = BTreeSet::from(["secret".to_owned()]));
    let list = |headers: &str| ask(&server, "GET", "/api/v1/pods", headers, "").0;
    assert_eq!(list(""), 401);
    assert_eq!(list("authorization: Bearer other\r\n"), 401);
    assert_eq!(list("authorization: Bearer secret\r\n"), 200);
}

#[test]
fn refusals_are_given_once_with_their_delay() {
    let server = ApiServer::start().unwrap();
    let busy = Refusal {
        retry_after: Some(2),
        ..Refusal::new(429, "TooManyRequests", "later")
    };
    server.manners(|m| m.refuse.push_back(busy));
    let mut reader = send(&server, "GET", "/api/v1/pods", "", "");
    let (code, head) = head(&mut reader);
    assert!(code == 429 && head.contains("retry-after: 2"), "{head}");
    assert_eq!(get(&server, "/api/v1/pods").0, 200);
}

#[test]
fn a_status_is_patched_apart_and_with_its_precondition() {
    let server = ApiServer::start().unwrap();
    let made = server.create_pod("n1", pod("a")).unwrap();
    let merge = "content-type: application/merge-patch+json\r\n";
    let path = format!("{SHOP}/a/status");
    let patch = |uid: &Value| {
        let body = json!({
            "metadata": {"uid": uid},
            "spec": {"nodeName": "elsewhere"},
            "status": {"phase": "Failed", "reason": "Evicted"},
        });
        ask(&server, "PATCH", &path, merge, &body.to_string())
    };
    assert_eq!(patch(&json!("another")).0, 422);
    let (code, after) = patch(&made["metadata"]["uid"]);
    assert_eq!(code, 200);
    // The version that it had is not the one that it has, and a watch reports it.
    let old = json!({
        "metadata": {"resourceVersion": made["metadata"]["resourceVersion"]},
        "status": {"phase": "Running"},
    });
    assert_eq!(ask(&server, "PATCH", &path, merge, &old.to_string()).0, 409);
    let (events, _) = watch(&server, "resourceVersion=1&timeoutSeconds=1");
    assert_eq!(kinds(&events), ["MODIFIED"]);
    assert_eq!(events[0]["object"], after);
    assert_eq!(
        after["status"],
        json!({"phase": "Failed", "reason": "Evicted"})
    );
    assert_eq!(after["spec"]["nodeName"], "n1");
    // The other way round the status is left alone.
    let body = json!({"status": null, "metadata": {"labels": {"a": "b"}}}).to_string();
    let (_, after) = ask(&server, "PATCH", &format!("{SHOP}/a"), merge, &body);
    assert_eq!(
        (&after["status"]["phase"], &after["metadata"]["labels"]["a"]),
        (&json!("Failed"), &json!("b"))
    );
    assert_eq!(ask(&server, "PATCH", &path, "", "{}").0, 415);
    let seen = server.take_seen();
    assert!(
        seen.contains(&Seen {
            verb: "patch",
            resource: "pods/status"
        }),
        "{seen:?}"
    );
}

#[test]
fn evictions_respect_the_budget_and_give_time_to_end() {
    let server = ApiServer::start().unwrap();
    let made = server.create_pod("n1", pod("a")).unwrap();
    server.create_pod("n1", pod("b")).unwrap();
    let of = |name: &str, uid: &Value| {
        let path = format!("{SHOP}/a/eviction");
        let body = json!({
            "metadata": {"name": name, "namespace": "shop"},
            "deleteOptions": {"preconditions": {"uid": uid}},
        });
        ask(&server, "POST", &path, "", &body.to_string()).0
    };
    assert_eq!(of("b", &made["metadata"]["uid"]), 400);
    assert_eq!(of("a", &json!("another")), 409);
    let missing = ask(&server, "POST", &format!("{SHOP}/z/eviction"), "", "{}");
    assert_eq!(missing.0, 404);
    let path = format!("{SHOP}/a/eviction");
    let evict = || ask(&server, "POST", &path, "", r#"{"kind": "Eviction"}"#);
    server.manners(|m| m.budget_spent = Some(10));
    let (code, status) = evict();
    assert_eq!((code, &status["reason"]), (429, &json!("TooManyRequests")));
    assert_eq!(status["details"]["retryAfterSeconds"], 10);
    assert_eq!(status["details"]["causes"][0]["reason"], "DisruptionBudget");
    server.manners(|m| m.budget_spent = None);
    let before = server.pod("shop", "a").unwrap();
    // A dry run asks the same and deletes nothing.
    let dry = |uid: &Value| {
        let options = json!({"dryRun": ["All"], "preconditions": {"uid": uid}});
        ask(
            &server,
            "POST",
            &path,
            "",
            &json!({"deleteOptions": options}).to_string(),
        )
        .0
    };
    assert_eq!(dry(&json!("another")), 409);
    assert_eq!(dry(&made["metadata"]["uid"]), 201);
    let by_query = ask(&server, "POST", &format!("{path}?dryRun=All"), "", "{}");
    assert_eq!(by_query.0, 201);
    server.manners(|m| m.kept.extend(["a".to_owned()]));
    assert_eq!(dry(&made["metadata"]["uid"]), 429);
    server.manners(|m| m.kept.clear());
    assert_eq!(server.pod("shop", "a").unwrap(), before);
    assert_eq!(evict().0, 201);
    let (events, _) = watch(
        &server,
        &format!(
            "timeoutSeconds=1&resourceVersion={}",
            before["metadata"]["resourceVersion"].as_str().unwrap()
        ),
    );
    // That of `b` came between.
    assert_eq!(kinds(&events), ["ADDED", "MODIFIED"]);
    let (_, ending) = get(&server, &format!("{SHOP}/a"));
    assert!(ending["metadata"]["deletionTimestamp"].is_string());
    let (code, _) = ask(
        &server,
        "DELETE",
        &format!("{SHOP}/a"),
        "",
        r#"{"gracePeriodSeconds": 0}"#,
    );
    assert_eq!((code, get(&server, &format!("{SHOP}/a")).0), (200, 404));
}

#[test]
fn events_are_made_and_nodes_are_read() {
    let server = ApiServer::start().unwrap();
    let event = json!({
        "metadata": {"generateName": "a."},
        "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "a"},
        "reason": "Evicted",
    });
    let event = event.to_string();
    let (code, made) = ask(
        &server,
        "POST",
        "/api/v1/namespaces/shop/events",
        "",
        &event,
    );
    assert_eq!(
        (code, &made["metadata"]["namespace"]),
        (201, &json!("shop"))
    );
    let named = |namespace: &str| {
        let event = json!({
            "metadata": {"name": "b", "namespace": namespace},
            "involvedObject": {"namespace": "shop"},
        });
        let event = event.to_string();
        let path = "/api/v1/namespaces/shop/events";
        let (code, answer) = ask(&server, "POST", path, "", &event);
        (code, answer["reason"].clone())
    };
    assert_eq!(named("elsewhere").0, 400);
    assert_eq!(named("shop").0, 201);
    assert_eq!(named("shop"), (409, json!("AlreadyExists")));
    let of_node = json!({
        "metadata": {"name": "c"},
        "involvedObject": {"kind": "Node", "name": "n1"},
    });
    let in_namespace = |namespace: &str| {
        let path = format!("/api/v1/namespaces/{namespace}/events");
        ask(&server, "POST", &path, "", &of_node.to_string()).0
    };
    assert_eq!((in_namespace("shop"), in_namespace("default")), (422, 201));
    assert_eq!(server.events().unwrap().len(), 3);
    let node = json!({"metadata": {"name": "n1"}}).to_string();
    assert_eq!(ask(&server, "POST", "/api/v1/nodes", "", &node).0, 201);
    assert_eq!(get(&server, "/api/v1/nodes/n1").0, 200);
    assert_eq!(ask(&server, "PUT", "/api/v1/nodes/n1", "", "{}").0, 405);
    assert_eq!(get(&server, "/api/v1/secrets").0, 404);
}

#[test]
fn a_condition_of_a_node_is_patched_beside_the_others() {
    let server = ApiServer::start().unwrap();
    let status =
        json!({"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"cpu": 2}});
    server.create_node("n1", &status).unwrap();
    let patch = |path: &str, status: &str| {
        let kind = "content-type: application/strategic-merge-patch+json\r\n";
        let condition = json!({"type": "Own", "status": status});
        let body = json!({"spec": {"unschedulable": true}, "status": {"conditions": [condition]}});
        ask(&server, "PATCH", path, kind, &body.to_string())
    };
    for status in ["False", "True"] {
        let (code, node) = patch("/api/v1/nodes/n1/status", status);
        let own = json!({"type": "Own", "status": status});
        let conditions = json!([{"type": "Ready", "status": "True"}, own]);
        assert_eq!((code, &node["status"]["conditions"]), (200, &conditions));
        assert!(node["spec"].is_null() && node["status"]["capacity"]["cpu"] == 2);
    }
    assert_eq!(patch("/api/v1/nodes/n2/status", "True").0, 404);
    let written = server.take_written();
    assert_eq!(written.len(), 2, "{written:?}");
    assert_eq!(
        (written[0].verb, written[0].resource),
        ("patch", "nodes/status")
    );
}

#[test]
fn a_server_that_is_away_does_nothing_of_what_it_is_asked() {
    let mut server = ApiServer::start().unwrap();
    server.create_pod("n1", pod("a")).unwrap();
    let connects = |server: &ApiServer| TcpStream::connect(server.server.address()).is_ok();
    server.go_away(Outage::Refused).unwrap();
    assert!(!connects(&server));

    server.go_away(Outage::Silent).unwrap();
    let mut answer = send(&server, "DELETE", &format!("{SHOP}/a"), "", "{}");
    let timeout = Some(Duration::from_millis(200));
    answer.get_ref().set_read_timeout(timeout).unwrap();
    let silence = answer.read_line(&mut String::new()).unwrap_err();
    assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock);

    server.go_away(Outage::Unavailable).unwrap();
    let (code, status) = get(&server, &format!("{SHOP}/a"));
    assert_eq!(
        (code, &status["reason"]),
        (503, &json!("ServiceUnavailable"))
    );

    server.go_away(Outage::Cut).unwrap();
    let mut answer = send(&server, "GET", &format!("{SHOP}/a"), "", "");
    assert_eq!(head(&mut answer).0, 200);
    let mut text = String::new();
    let _ = answer.read_to_string(&mut text);
    assert!(!text.ends_with("0\r\n\r\n"), "it is whole: {text:?}");

    assert_eq!(server.turned_away(), 3);
    server.come_back().unwrap();
    assert_eq!(get(&server, &format!("{SHOP}/a")).0, 200);
    assert_eq!(server.take_written(), []);
}

#[test]
fn after_a_restart_everything_is_as_it_was() {
    let mut server = ApiServer::start().unwrap();
    server.create_pod("n1", pod("a")).unwrap();
    server.stop();
    TcpStream::connect(server.server.address()).unwrap_err();
    server.resume().unwrap();
    let (code, list) = get(&server, "/api/v1/pods");
    assert_eq!(
        (code, list["items"][0]["metadata"]["name"].as_str()),
        (200, Some("a"))
    );
    server.remove_pod("shop", "a").unwrap();
}
