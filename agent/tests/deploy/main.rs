//! What is shipped for Kubernetes, against the API's own types and the agent's own parsers.

mod chart;
mod colocation;
mod kustomize;
mod render;

use std::collections::BTreeSet;

use clap::CommandFactory as _;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Namespace, ResourceQuota, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use podwarden::config::{Config, Mode, Overrides};
use podwarden_policy::plan::Ownership;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

const SHIPPED: &str = include_str!("../../../deploy/kubernetes/podwarden.yaml");

fn objects() -> Vec<Value> {
    serde_saphyr::from_multiple(SHIPPED).unwrap()
}

fn object(kind: &str) -> Value {
    let mut found = objects().into_iter().filter(|o| o["kind"] == kind);
    let object = found.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(found.next().is_none(), "more than one {kind}");
    object
}

/// What the API's type makes of an object and what it was: a field that it does not know is lost.
fn typed<T: DeserializeOwned + Serialize>(kind: &str) -> T {
    let object = object(kind);
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|e| panic!("{kind}: {e}"));
    assert_eq!(serde_json::to_value(&typed).unwrap(), object, "{kind}");
    typed
}

#[test]
fn every_object_is_what_the_api_knows() {
    typed::<Namespace>("Namespace");
    typed::<ServiceAccount>("ServiceAccount");
    typed::<ClusterRole>("ClusterRole");
    typed::<ConfigMap>("ConfigMap");
    typed::<ResourceQuota>("ResourceQuota");
    let binding = typed::<ClusterRoleBinding>("ClusterRoleBinding");
    let set = typed::<DaemonSet>("DaemonSet");
    let kinds: BTreeSet<_> = objects()
        .iter()
        .map(|o| o["kind"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(kinds.len(), 7, "{kinds:?}");

    // They name each other.
    let account = object("ServiceAccount")["metadata"].clone();
    let subject = &binding.subjects.unwrap()[0];
    assert_eq!(account["name"], subject.name.as_str());
    assert_eq!(account["namespace"], *subject.namespace.as_ref().unwrap());
    assert_eq!(
        object("ClusterRole")["metadata"]["name"],
        binding.role_ref.name.as_str()
    );
    let namespace = object("Namespace")["metadata"]["name"].clone();
    assert_eq!(account["namespace"], namespace);
    assert_eq!(namespace, *set.metadata.namespace.as_ref().unwrap());
    let set = set.spec.unwrap();
    let labels = set.template.metadata.unwrap().labels.unwrap();
    for (key, value) in set.selector.match_labels.unwrap() {
        assert_eq!(labels.get(&key), Some(&value), "{key}");
    }
    let pod = set.template.spec.unwrap();
    assert_eq!(account["name"], *pod.service_account_name.as_ref().unwrap());
    let volumes: BTreeSet<_> = pod.volumes.unwrap().into_iter().map(|v| v.name).collect();
    let mounts = pod.containers[0].volume_mounts.clone().unwrap();
    let mounts: BTreeSet<_> = mounts.into_iter().map(|m| m.name).collect();
    assert_eq!(volumes, mounts);
}

#[test]
fn the_configuration_changes_nothing_until_it_is_told_to() {
    let map = object("ConfigMap");
    let text = map["data"]["config.yaml"].as_str().unwrap();
    let config = Config::parse("config.yaml", text, Overrides::default()).unwrap();
    assert_eq!(config.mode, Mode::Observe);
    assert_eq!(config.ownership, Ownership::Assist);
}

#[test]
fn the_command_line_is_one() {
    let set = object("DaemonSet");
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    let args = container["args"].as_array().unwrap().iter();
    // The kubelet puts the value of the variable there.
    let args = args.map(|arg| arg.as_str().unwrap().replace("$(NODE_NAME)", "node-1"));
    let command = podwarden::cli::Cli::command();
    let matches = command
        .try_get_matches_from(std::iter::once("podwarden".to_owned()).chain(args))
        .unwrap();
    assert_eq!(matches.subcommand_name(), Some("run"));
    // The API's socket is the default of every subcommand; the probes ask over the socket of the pod's own health.
    let (_, run) = matches.subcommand().unwrap();
    assert_eq!(run.get_raw("api_socket").map(Iterator::count), None);
    assert!(run.get_flag("wait_for_lock"));
    let own: &std::path::PathBuf = run.get_one("health_socket").unwrap();
    for (probe, path) in [("readinessProbe", "ready"), ("livenessProbe", "health")] {
        let command = container[probe]["exec"]["command"].as_array().unwrap();
        let words: Vec<_> = command.iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(words[0], "/usr/local/bin/podwarden", "{probe}");
        let asked = podwarden::cli::Cli::command().try_get_matches_from(&words);
        let asked = asked.unwrap();
        let (name, health) = asked.subcommand().unwrap();
        assert_eq!(name, "health", "{probe}");
        assert_eq!(health.get_flag("ready"), path == "ready", "{probe}");
        let timeout = container[probe]["timeoutSeconds"].as_u64().unwrap();
        let wait: &std::time::Duration = health.get_one("wait").unwrap();
        assert!(wait.as_secs_f64() < timeout as f64, "{probe}");
        assert_eq!(wait.is_zero(), path != "ready", "{probe}");
        let asked: &std::path::PathBuf = health.get_one("api_socket").unwrap();
        assert_eq!(asked, own, "{probe}");
        // Longer than the start of a process on a busy node.
        assert!(container[probe]["timeoutSeconds"].as_u64() >= Some(5));
    }
}

#[test]
fn what_agents_leave_is_undone_with_their_mounts() {
    const UNDO: &str = include_str!("../../../deploy/kubernetes/undo.yaml");
    let object: Value = serde_saphyr::from_str(UNDO).unwrap();
    let set: DaemonSet = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(&set).unwrap(), object);
    let undo = set.spec.unwrap().template.spec.unwrap();
    let agents = typed::<DaemonSet>("DaemonSet").spec.unwrap().template;
    let agents = agents.spec.unwrap();
    assert_eq!(undo.node_selector, agents.node_selector);
    assert_eq!(undo.affinity, agents.affinity);
    assert_eq!(undo.tolerations, agents.tolerations);
    let theirs = agents.volumes.unwrap();
    for volume in undo.volumes.unwrap() {
        assert!(theirs.contains(&volume), "{volume:?}");
    }
    let container = &undo.init_containers.unwrap()[0];
    assert_eq!(container.image, agents.containers[0].image);
    let theirs = agents.containers[0].volume_mounts.clone().unwrap();
    for mount in container.volume_mounts.iter().flatten() {
        assert!(theirs.contains(mount), "{mount:?}");
    }
    let args = container.args.iter().flatten().map(String::as_str);
    let command = podwarden::cli::Cli::command();
    let matches = command.try_get_matches_from(std::iter::once("podwarden").chain(args));
    assert_eq!(matches.unwrap().subcommand_name(), Some("undo"));
}

/// systemd.service(5), systemd.unit(5).
#[test]
fn the_service_is_watched_and_always_started_again() {
    const UNIT: &str = include_str!("../../../deploy/podwarden.service");
    let of = |key: &str| -> &str {
        let mut values = UNIT.lines().filter_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name == key).then_some(value)
        });
        let value = values.next().unwrap_or_else(|| panic!("no {key}"));
        assert_eq!(values.next(), None, "{key}");
        value
    };
    assert_eq!(of("Type"), "notify");
    // Who notifies is the agent itself, not its guard.
    assert_eq!(of("NotifyAccess"), "main");
    // Seconds; the agent says every two that its loops go round.
    let watchdog: u64 = of("WatchdogSec").parse().unwrap();
    assert!((10..=60).contains(&watchdog), "{watchdog}");
    assert_eq!(of("Restart"), "always");
    assert_eq!(of("StartLimitIntervalSec"), "0");
    let words: Vec<_> = of("ExecStart").split(' ').collect();
    let command = podwarden::cli::Cli::command();
    let matches = command.try_get_matches_from(&words).unwrap();
    assert_eq!(matches.subcommand_name(), Some("run"));
}

/// Two pods of one node: the new one waits, Ready, for the end of the old one.
#[test]
fn an_update_leaves_no_node_without_an_agent() {
    let set = object("DaemonSet");
    let update = &set["spec"]["updateStrategy"]["rollingUpdate"];
    assert_eq!(update["maxUnavailable"], 0);
    assert_eq!(update["maxSurge"], "10%");
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert!(
        container.get("ports").is_none(),
        "a port is a hostPort here, and there is one of it on a node"
    );
    // What probes ask is the pod's own; what two agents must not share is the node's.
    let mount = |path: &str| {
        let mounts = container["volumeMounts"].as_array().unwrap().iter();
        let mount = mounts.clone().find(|mount| mount["mountPath"] == path);
        let name = &mount.unwrap()["name"];
        let volumes = pod["volumes"].as_array().unwrap().iter();
        volumes
            .clone()
            .find(|volume| volume["name"] == *name)
            .unwrap()
    };
    assert!(mount("/run/podwarden-pod").get("emptyDir").is_some());
    assert!(mount("/run/podwarden").get("hostPath").is_some());
}
