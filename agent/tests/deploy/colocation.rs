//! What is shipped for co-location, against the API's own types and the policy's bands.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ValidatingAdmissionPolicy,
        ValidatingAdmissionPolicyBinding,
    },
    core::v1::ConfigMap,
    scheduling::v1::PriorityClass,
};
use podwarden_policy::colocation::class::{Band, Class};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

const CLASSES: &str = include_str!("../../../deploy/colocation/priority-classes.yaml");
const PROFILE: &str = include_str!("../../../deploy/colocation/profile.yaml");
const CONFINED: &str = include_str!("../../../deploy/colocation/confine-agent.yaml");

/// The objects of a kind; a field that the API's type does not know is an error.
fn of<T: DeserializeOwned + Serialize>(text: &str, kind: &str) -> Vec<T> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let objects = objects.into_iter().filter(|object| object["kind"] == kind);
    let typed = objects.map(|object| {
        let typed: T =
            serde_json::from_value(object.clone()).unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert_eq!(serde_json::to_value(&typed).unwrap(), object, "{kind}");
        typed
    });
    typed.collect()
}

fn one<T: DeserializeOwned + Serialize>(text: &str, kind: &str) -> T {
    let mut found = of(text, kind);
    assert_eq!(found.len(), 1, "{kind}");
    found.remove(0)
}

fn classes() -> BTreeMap<String, PriorityClass> {
    let all: Vec<PriorityClass> = of(CLASSES, "PriorityClass");
    all.into_iter()
        .map(|class| (class.metadata.name.clone().unwrap(), class))
        .collect()
}

#[test]
fn there_is_a_priority_class_in_each_band() {
    let classes = classes();
    assert_eq!(classes.len(), Band::ALL.len());
    for band in Band::ALL {
        let class = &classes[band.as_str()];
        assert_eq!(class.value.and_then(Band::of_priority), Some(band));
        let never = class.preemption_policy.as_deref() == Some("Never");
        assert_eq!(never, band != Band::Prod, "{band}");
    }
}

#[test]
fn the_profile_names_what_there_is() {
    let map: ConfigMap = one(PROFILE, "ConfigMap");
    let data = map.data.unwrap();
    let class = &classes()[&data["priorityClassName"]];
    assert_eq!(data["priority"], class.value.unwrap().to_string());
    assert_eq!(
        data["preemptionPolicy"],
        *class.preemption_policy.as_ref().unwrap()
    );
    assert_eq!(Class::from_text(&data["qosClass"]), Some(Class::Be));
    assert!(["batch", "mid"].contains(&data["resources"].as_str()));

    let policy: MutatingAdmissionPolicy = one(PROFILE, "MutatingAdmissionPolicy");
    let binding: MutatingAdmissionPolicyBinding = one(PROFILE, "MutatingAdmissionPolicyBinding");
    let bound = binding.spec.unwrap();
    assert_eq!(bound.policy_name, policy.metadata.name);
    let parameters = bound.param_ref.unwrap();
    assert_eq!(parameters.name, map.metadata.name);
    assert_eq!(parameters.namespace, map.metadata.namespace);
    // Every parameter that an expression reads is in the ConfigMap.
    let text = serde_json::to_string(&policy.spec).unwrap();
    let mut used = 0;
    for after in text.split("params.data.").skip(1) {
        let end = after.find(|c: char| !c.is_ascii_alphanumeric()).unwrap();
        assert!(data.contains_key(&after[..end]), "{}", &after[..end]);
        used += 1;
    }
    assert!(used >= data.len(), "{used}");
}

#[test]
fn the_agent_is_confined_by_name() {
    let policy: ValidatingAdmissionPolicy = one(CONFINED, "ValidatingAdmissionPolicy");
    let binding: ValidatingAdmissionPolicyBinding =
        one(CONFINED, "ValidatingAdmissionPolicyBinding");
    let bound = binding.spec;
    assert_eq!(Some(bound.policy_name), policy.metadata.name);
    assert_eq!(bound.validation_actions, ["Deny"]);
    let spec = policy.spec.unwrap();
    assert_eq!(spec.failure_policy.as_deref(), Some("Fail"));
    let account: Value = super::object("ServiceAccount");
    let name = |key: &str| account["metadata"][key].as_str().unwrap().to_owned();
    let user = format!(
        "'system:serviceaccount:{}:{}'",
        name("namespace"),
        name("name")
    );
    let conditions = spec.match_conditions.unwrap();
    assert!(conditions[0].expression.ends_with(&user), "{conditions:?}");
}
