//! The Helm chart: its defaults are what `deploy/kubernetes/podwarden.yaml` holds, and each preset makes objects that the
//! API knows, with the rights that its mode needs.
//!
//! The templates use a small part of Helm's language, which [`render`] knows: `if` and `eq`, values, `toYaml`,
//! `nindent` and `.Files.Get`, directives on lines of their own. Where helm is installed, its own rendering is compared as well.

use std::{collections::BTreeMap, fs, io::ErrorKind, path::PathBuf, process::Command};

use k8s_openapi::api::{apps::v1::DaemonSet, rbac::v1::ClusterRole};
use podwarden::config::{Config, Mode, Overrides};
use serde_json::{Value, json};

fn chart() -> PathBuf {
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

fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is) => *is,
        Value::Object(map) => !map.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    }
}

fn look_up(path: &str, values: &Value) -> Value {
    match path {
        ".Release.Namespace" => json!("podwarden"),
        path => {
            let path = path
                .strip_prefix(".Values.")
                .unwrap_or_else(|| panic!("{path}: unknown"));
            path.split('.')
                .fold(values.clone(), |value, key| value[key].clone())
        }
    }
}

/// What stands between `{{` and `}}`, indented as `nindent` asks.
fn expression(text: &str, values: &Value) -> String {
    let (value, indent) = match text.split_once(" | nindent ") {
        Some((value, indent)) => (value, Some(indent.parse::<usize>().unwrap())),
        None => (text, None),
    };
    let value = if let Some(path) = value.strip_prefix("toYaml ") {
        // JSON is YAML.
        look_up(path, values).to_string()
    } else if let Some(file) = value.strip_prefix(".Files.Get ") {
        fs::read_to_string(chart().join(file.trim_matches('"'))).unwrap()
    } else {
        match look_up(value, values) {
            Value::String(text) => text,
            other => other.to_string(),
        }
    };
    let Some(indent) = indent else { return value };
    let lines = value
        .lines()
        .map(|line| format!("\n{}{line}", " ".repeat(indent)));
    lines.collect()
}

fn condition(text: &str, values: &Value) -> bool {
    match text.strip_prefix("eq ") {
        None => is_true(&look_up(text, values)),
        Some(rest) => {
            let (path, wanted) = rest.split_once(' ').unwrap();
            look_up(path, values) == json!(wanted.trim_matches('"'))
        }
    }
}

/// One template.
fn render(template: &str, values: &Value) -> String {
    let mut text = String::new();
    // Of each open `if`, whether its lines count.
    let mut open: Vec<bool> = Vec::new();
    for line in template.lines() {
        let directive = line
            .trim()
            .strip_prefix("{{- ")
            .and_then(|rest| rest.strip_suffix(" }}"));
        let counts = open.iter().all(|counts| *counts);
        match directive {
            Some(rest) if rest.starts_with("if ") => open.push(condition(&rest[3..], values)),
            Some("else") => *open.last_mut().unwrap() ^= true,
            Some("end") => drop(open.pop().unwrap()),
            _ if !counts => {}
            Some(rest) if rest.starts_with("fail ") => panic!("{rest}"),
            Some(rest) => text.push_str(&expression(rest, values)),
            None => {
                let mut rest = line;
                text.push('\n');
                while let Some((before, after)) = rest.split_once("{{ ") {
                    let (inside, after) = after.split_once(" }}").unwrap();
                    text.push_str(before);
                    text.push_str(&expression(inside, values));
                    rest = after;
                }
                text.push_str(rest);
            }
        }
    }
    assert!(open.is_empty());
    text
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
    let values = values(presets);
    let mut all = Objects::new();
    for entry in fs::read_dir(chart().join("templates")).unwrap() {
        let template = fs::read_to_string(entry.unwrap().path()).unwrap();
        all.extend(objects(&render(&template, &values)));
    }
    all
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
    assert_eq!(rendered(&[]), shipped);
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
#[should_panic(expected = "set rights.evict")]
fn enforcing_without_its_rights_is_refused() {
    let mut values = values(&["enforce"]);
    values["rights"]["evict"] = json!(false);
    render(
        &fs::read_to_string(chart().join("templates/rights.yaml")).unwrap(),
        &values,
    );
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
        assert_eq!(objects(&text), rendered(presets), "{presets:?}");
    }
}
