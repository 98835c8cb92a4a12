//! Pods written as briefly as the tables need them.

use podwarden_policy::{
    Container, ContainerKind, Pod, PodUid, Resources,
    quantity::{parse_cpu, parse_memory},
};

/// `requests.cpu`, `requests.memory`, `limits.cpu`, `limits.memory`; "" is not written.
pub(crate) fn resources(written: [&str; 4]) -> Resources {
    let cpu = |text: &str| (!text.is_empty()).then(|| parse_cpu(text).expect(text));
    let memory = |text: &str| (!text.is_empty()).then(|| parse_memory(text).expect(text));
    let [cpu_request, memory_request, cpu_limit, memory_limit] = written;
    Resources {
        cpu_request: cpu(cpu_request),
        memory_request: memory(memory_request),
        cpu_limit: cpu(cpu_limit),
        memory_limit: memory(memory_limit),
        ..Resources::default()
    }
}

pub(crate) fn container(kind: ContainerKind, written: [&str; 4]) -> Container {
    Container {
        name: "c".into(),
        kind,
        resources: resources(written),
    }
}

pub(crate) fn pod(uid: &str, containers: &[[&str; 4]]) -> Pod {
    Pod {
        uid: PodUid::from(uid),
        name: uid.into(),
        namespace: "default".into(),
        containers: containers
            .iter()
            .map(|written| container(ContainerKind::App, *written))
            .collect(),
        ..Pod::default()
    }
}
