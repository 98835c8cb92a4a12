//! Why a pod has its class.

use podwarden_policy::{Pod, QosClass, Resources, colocation::class, qos};

/// One sentence, and for a Burstable pod what keeps it from being Guaranteed.
pub(super) fn why(pod: &Pod) -> String {
    let sets: Vec<_> = match &pod.pod_resources {
        Some(own) => vec![("the pod".to_owned(), own)],
        None => {
            let name = |name: &str| format!("container {name}");
            let containers = pod.containers.iter();
            containers.map(|c| (name(&c.name), &c.resources)).collect()
        }
    };
    match (qos::classify(pod), &pod.pod_resources) {
        (QosClass::BestEffort, None) => {
            "no container has a request or a limit of cpu or memory".to_owned()
        }
        (QosClass::BestEffort, Some(_)) => {
            "spec.resources stands for the containers, and has no cpu or memory".to_owned()
        }
        (QosClass::Guaranteed, None) => {
            "every container has limits of cpu and memory, and its requests equal them".to_owned()
        }
        (QosClass::Guaranteed, Some(_)) => {
            "spec.resources has limits of cpu and memory, and its requests equal them".to_owned()
        }
        (QosClass::Burstable, _) => {
            let missing = sets.iter().find_map(|(of, resources)| lacks(of, resources));
            let missing = missing.unwrap_or_else(|| "requests and limits differ".to_owned());
            format!("it asks for something, and is not Guaranteed because {missing}")
        }
    }
}

/// The class and band that co-location takes, where they come from, and what has no effect.
pub(super) fn colocation(pod: &Pod) -> String {
    let found = class::classify(pod);
    let mut text = format!(
        "co-location: {} ({}), {} ({})",
        found.class, found.class_source, found.band, found.band_source
    );
    for contradiction in found.contradictions {
        text.push_str(&format!("; {contradiction}"));
    }
    text
}

/// What keeps these resources from being Guaranteed. A zero counts as not written.
fn lacks(of: &str, resources: &Resources) -> Option<String> {
    let cpu = |amount: Option<podwarden_policy::MilliCpu>| {
        amount.filter(|a| !a.is_zero()).map(|a| a.to_string())
    };
    let memory = |amount: Option<podwarden_policy::Bytes>| {
        amount.filter(|a| !a.is_zero()).map(|a| a.to_string())
    };
    let rows = [
        ("cpu", cpu(resources.cpu_request), cpu(resources.cpu_limit)),
        (
            "memory",
            memory(resources.memory_request),
            memory(resources.memory_limit),
        ),
    ];
    rows.into_iter().find_map(|row| match row {
        (resource, _, None) => Some(format!("{of} has no {resource} limit")),
        (resource, None, Some(_)) => Some(format!("{of} has no {resource} request")),
        (resource, Some(request), Some(limit)) if request != limit => Some(format!(
            "{of} requests {request} of {resource} and is limited to {limit}"
        )),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use podwarden_policy::{Bytes, Container, MilliCpu};

    use super::*;

    fn pod(containers: Vec<Resources>) -> Pod {
        let container = |(i, resources)| Container {
            name: format!("c{i}"),
            resources,
            ..Container::default()
        };
        Pod {
            containers: containers.into_iter().enumerate().map(container).collect(),
            ..Pod::default()
        }
    }

    #[test]
    fn the_first_thing_that_is_missing_is_named() {
        let full = Resources {
            cpu_request: Some(MilliCpu(100)),
            cpu_limit: Some(MilliCpu(100)),
            memory_request: Some(Bytes::mebi(1)),
            memory_limit: Some(Bytes::mebi(1)),
            ..Resources::default()
        };
        let lower = Resources {
            memory_request: Some(Bytes(1)),
            ..full.clone()
        };
        let no_request = Resources {
            cpu_request: Some(MilliCpu(0)),
            ..full.clone()
        };
        let cases = [
            (vec![], "no container has a request"),
            (vec![full.clone()], "every container has limits"),
            (
                vec![full.clone(), Resources::default()],
                "container c1 has no cpu limit",
            ),
            (
                vec![lower],
                "container c0 requests 1 of memory and is limited to 1Mi",
            ),
            (vec![no_request], "container c0 has no cpu request"),
        ];
        for (containers, expected) in cases {
            let text = why(&pod(containers));
            assert!(text.contains(expected), "{text}");
        }
        let level = Pod {
            pod_resources: Some(Resources::default()),
            ..pod(vec![full])
        };
        assert!(why(&level).starts_with("spec.resources stands for"));
    }

    #[test]
    fn the_class_of_colocation_says_where_it_comes_from() {
        let mut plain = pod(vec![]);
        let text = colocation(&plain);
        assert_eq!(
            text,
            "co-location: BE (BestEffort in Kubernetes), koord-batch (class BE)"
        );
        plain.colocation.qos_class = Some("LSR".to_owned());
        let text = colocation(&plain);
        assert!(text.contains("BE (BestEffort in Kubernetes)"), "{text}");
        assert!(
            text.contains("; metadata.labels[koordinator.sh/qosClass]: LSR contradicts"),
            "{text}"
        );
    }
}
