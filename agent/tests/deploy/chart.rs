//! The Helm chart: its defaults are what `deploy/kubernetes/podwarden.yaml` holds, and each preset makes objects that the
//! API knows, with the rights that its mode needs.
//!
//! Where helm is installed, its own rendering is compared as well.

use std::{collections::BTreeMap, fs, io::ErrorKind, path::PathBuf, process::Command};

use k8s_openapi::api::{apps::v1::DaemonSet, rbac::v1::ClusterRole};
use podwarden::config::{Config, Mode, Overrides};
use serde_json::{Value, json};

use super::render::render;

pub(crate) fn chart() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart")
}

fn yaml(file: &str) -> Value {
    let text = fs::read_to_string(chart().join(file)).unwrap();
    serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Lays what a preset says over the values.
fn merge(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                merge(under.entry(key).or_insert(Value::Null), value);
            }
        }
        (under, over) => *under = over,
    }
}

fn values(presets: &[&str]) -> Value {
    let mut values = yaml("values.yaml");
    for preset in presets {
        merge(&mut values, yaml(&format!("presets/{preset}.yaml")));
    }
    values
}

/// All templates, by the names of their files.
fn render_all(values: &Value, namespace: &str) -> Result<Objects, String> {
    let mut all = Objects::new();
    for entry in fs::read_dir(chart().join("templates")).unwrap() {
        let path = entry.unwrap().path();
        let template = fs::read_to_string(&path).unwrap();
        let text = render(&template, values, namespace);
        all.extend(objects(
            &text.map_err(|e| format!("{}: {e}", path.display()))?,
        ));
    }
    Ok(all)
}

/// The objects by kind and name; a configuration inside one as what it says.
pub(crate) type Objects = BTreeMap<(String, String), Value>;

pub(crate) fn objects(text: &str) -> Objects {
    let all: Vec<Value> =
        serde_saphyr::from_multiple(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let named = all
        .into_iter()
        .filter(|object| !object.is_null())
        .map(|mut object| {
            if let Some(config) = object.pointer_mut("/data/config.yaml") {
                *config = serde_saphyr::from_str(config.as_str().unwrap()).unwrap();
            }
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            ((object["kind"].as_str().unwrap().to_owned(), name), object)
        });
    named.collect()
}

pub(crate) fn rendered(presets: &[&str]) -> Objects {
    render_all(&values(presets), "podwarden").unwrap()
}

/// With these values over those of a preset.
fn rendered_with(preset: &str, more: Value, namespace: &str) -> Result<Objects, String> {
    let mut values = values(&[preset]);
    merge(&mut values, more);
    render_all(&values, namespace)
}

/// Takes the checksum of the configuration away, which the plain manifest has none of.
pub(crate) fn take_checksum(objects: &mut Objects) -> Value {
    let key = ("DaemonSet".to_owned(), "podwarden".to_owned());
    let template = &mut objects.get_mut(&key).unwrap()["spec"]["template"]["metadata"];
    let taken = template["annotations"]["checksum/config"].take();
    template.as_object_mut().unwrap().remove("annotations");
    taken
}

fn object<'a>(objects: &'a Objects, kind: &str, name: &str) -> &'a Value {
    let found = objects.get(&(kind.to_owned(), name.to_owned()));
    found.unwrap_or_else(|| panic!("no {kind} {name} in {:?}", objects.keys()))
}

/// `resources` that may be written, of the agent's role.
fn writes(objects: &Objects) -> Vec<String> {
    let role: ClusterRole =
        serde_json::from_value(object(objects, "ClusterRole", "podwarden").clone()).unwrap();
    let rules = role.rules.unwrap().into_iter();
    let rules = rules.filter(|rule| rule.verbs.iter().any(|v| v == "patch" || v == "create"));
    rules.flat_map(|rule| rule.resources.unwrap()).collect()
}

#[test]
fn the_defaults_are_the_plain_manifest() {
    let mut shipped = objects(super::SHIPPED);
    // The release is recorded in its namespace, so that one must be there before: helm refuses a chart that makes it.
    let namespace = ("Namespace".to_owned(), "podwarden".to_owned());
    assert!(shipped.remove(&namespace).is_some());
    let mut defaults = rendered(&[]);
    take_checksum(&mut defaults);
    assert_eq!(defaults, shipped);
}

#[test]
fn another_configuration_is_another_pod() {
    let of = |presets| take_checksum(&mut rendered(presets));
    assert_ne!(of(&["observe"]), of(&["enforce"]));
    assert_eq!(of(&["enforce"]), of(&["enforce", "monitoring"]));
    assert_eq!(of(&[]).as_str().unwrap().len(), 64);
}

#[test]
fn each_preset_has_the_rights_of_its_mode_and_a_configuration_that_the_agent_takes() {
    for (preset, mode, written) in [
        ("observe", Mode::Observe, &[][..]),
        (
            "enforce",
            Mode::Enforce,
            &["pods/status", "events", "nodes", "nodes/status"],
        ),
        (
            "colocation",
            Mode::Enforce,
            &["pods/status", "events", "nodes", "nodes/status"],
        ),
    ] {
        let objects = rendered(&[preset]);
        assert_eq!(writes(&objects), written, "{preset}");
        let map = object(&objects, "ConfigMap", "podwarden");
        let text = map["data"]["config.yaml"].to_string();
        let config = Config::parse(preset, &text, Overrides::default()).unwrap();
        assert_eq!(config.mode, mode, "{preset}");
        let needs = config.node_condition || config.colocation.reclaimed.publish;
        assert_eq!(needs, written.contains(&"nodes/status"), "{preset}");
        let is_there = |kind: &str| objects.keys().any(|(k, _)| k == kind);
        assert_eq!(is_there("PriorityClass"), preset == "colocation");
        assert_eq!(
            is_there("ValidatingAdmissionPolicy"),
            preset == "colocation"
        );
    }
}

#[test]
fn monitoring_serves_metrics_to_those_whom_the_api_server_lets_in() {
    let objects = rendered(&["enforce", "monitoring"]);
    let set = object(&objects, "DaemonSet", "podwarden").clone();
    let typed: DaemonSet = serde_json::from_value(set.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), set);
    let containers = typed.spec.unwrap().template.spec.unwrap().containers;
    let [agent] = &containers[..] else {
        panic!("{} containers", containers.len());
    };
    let listen = agent
        .args
        .iter()
        .flatten()
        .find_map(|arg| arg.strip_prefix("--secure-listen="));
    let listen: std::net::SocketAddr = listen.unwrap().parse().unwrap();
    // On the host's network a declared port is a hostPort: no second pod would fit on the node during an update.
    assert_eq!(agent.ports, None);
    let endpoint = &object(&objects, "PodMonitor", "podwarden")["spec"]["podMetricsEndpoints"][0];
    assert!(endpoint.get("port").is_none() && endpoint.get("targetPort").is_none());
    let relabelings = endpoint["relabelings"].as_array().unwrap().iter();
    let addresses: Vec<_> = relabelings
        .filter(|rule| rule["targetLabel"] == "__address__")
        .map(|rule| rule["replacement"].as_str().unwrap())
        .collect();
    let port = listen.port();
    assert_eq!(
        addresses,
        [format!("${{1}}:{port}"), format!("[${{1}}]:{port}")]
    );
    assert_eq!(endpoint["scheme"], "https");
    for review in ["tokenreviews", "subjectaccessreviews"] {
        assert!(writes(&objects).contains(&review.to_owned()), "{review}");
        let without = rendered(&["enforce"]);
        assert!(!writes(&without).contains(&review.to_owned()), "{review}");
    }
    object(&objects, "PrometheusRule", "podwarden");
    let boards = object(&objects, "ConfigMap", "podwarden-dashboards");
    for board in ["podwarden-node.json", "podwarden-fleet.json"] {
        let board: Value = serde_json::from_str(boards["data"][board].as_str().unwrap()).unwrap();
        assert_eq!(board["tags"][0], "podwarden");
    }
}

#[test]
fn a_configuration_without_its_rights_is_refused() {
    for (preset, more, remedy) in [
        (
            "enforce",
            json!({"rights": {"evict": false}}),
            "set rights.evict",
        ),
        (
            "observe",
            json!({"config": {"nodeCondition": true}}),
            "config.nodeCondition is true: set rights.nodeStatus",
        ),
        (
            "observe",
            json!({"config": {"colocation": {"reclaimed": {"publish": true}}}}),
            "publish is true: set rights.nodeStatus",
        ),
    ] {
        let refused = rendered_with(preset, more, "podwarden").unwrap_err();
        assert!(refused.contains(remedy), "{refused}");
    }
}

#[test]
fn what_names_its_namespace_is_refused_in_another() {
    assert!(rendered_with("enforce", json!({}), "agents").is_ok());
    for more in [
        json!({"confine": true}),
        json!({"colocation": true}),
        json!({"monitoring": {"enabled": true}}),
    ] {
        let refused = rendered_with("enforce", more, "agents").unwrap_err();
        assert!(
            refused.contains("name the namespace podwarden"),
            "{refused}"
        );
    }
}

#[test]
fn a_configuration_brings_the_rights_that_it_needs() {
    let more = json!({"config": {
        "evictionStatus": {"how": "evictionApi"},
        "kubelet": {"url": "https://127.0.0.1:10250"},
        "secureListen": "0.0.0.0:9596",
    }});
    let objects = rendered_with("enforce", more, "podwarden").unwrap();
    let written = [
        "pods/eviction",
        "events",
        "nodes",
        "nodes/status",
        "tokenreviews",
        "subjectaccessreviews",
    ];
    assert_eq!(writes(&objects), written);
    let rules = object(&objects, "ClusterRole", "podwarden")["rules"].clone();
    let kubelet = json!({"apiGroups": [""], "resources": ["nodes/pods"], "verbs": ["get"]});
    assert!(rules.as_array().unwrap().contains(&kubelet), "{rules}");
}

#[test]
fn helm_renders_the_same() {
    let combinations: [&[&str]; 5] = [
        &[],
        &["observe"],
        &["enforce"],
        &["colocation"],
        &["enforce", "monitoring"],
    ];
    for presets in combinations {
        let mut command = Command::new("helm");
        command
            .args(["template", "podwarden", ".", "--namespace", "podwarden"])
            .current_dir(chart());
        for preset in presets {
            command
                .arg("--values")
                .arg(format!("presets/{preset}.yaml"));
        }
        let done = match command.output() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                println!("skipped: there is no helm");
                return;
            }
            done => done.unwrap(),
        };
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        let text = String::from_utf8(done.stdout).unwrap();
        let (mut theirs, mut ours) = (objects(&text), rendered(presets));
        // Of the same text, written in another way.
        take_checksum(&mut theirs);
        take_checksum(&mut ours);
        assert_eq!(theirs, ours, "{presets:?}");
    }
}
