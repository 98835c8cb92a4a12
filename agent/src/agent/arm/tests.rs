use podwarden_policy::{
    Container, Resources, model::Reserved, plan::DEFAULT_MARGIN, units::MilliCpu,
};

use super::*;

fn node(percent: Option<u8>) -> Node {
    Node {
        cpu_capacity: MilliCpu(4000),
        memory_capacity: Bytes::gibi(10),
        eviction_hard_memory: Bytes::gibi(1),
        qos_reserved_memory_percent: percent,
        ..Node::default()
    }
}

fn pod(name: &str, memory: u64, cpu: Option<u64>) -> Pod {
    let resources = Resources {
        memory_request: Some(Bytes::gibi(memory)),
        memory_limit: cpu.map(|_| Bytes::gibi(memory)),
        cpu_request: cpu.map(MilliCpu),
        cpu_limit: cpu.map(MilliCpu),
        ..Resources::default()
    };
    Pod {
        uid: name.into(),
        name: name.to_owned(),
        containers: vec![Container {
            resources,
            ..Container::default()
        }],
        ..Pod::default()
    }
}

#[test]
fn kubepods_level_leaves_the_eviction_threshold_free() {
    let levels = Levels::of(&node(None), []);
    assert_eq!(levels.kubepods, Some(9 << 30));
    assert_eq!((levels.burstable, levels.besteffort), (None, None));
    let none = Node {
        eviction_hard_memory: Bytes(0),
        ..node(None)
    };
    assert_eq!(Levels::of(&none, []), Levels::default());
}

#[test]
fn tiers_keep_what_higher_classes_asked_for() {
    let pods = [pod("g", 2, Some(500)), pod("b", 4, None)];
    let levels = Levels::of(&node(Some(50)), &pods);
    let margin = DEFAULT_MARGIN.as_u64();
    assert_eq!(
        levels.burstable,
        Some((9 << 30) - margin),
        "10 GiB - 50 % of 2 GiB; the threshold for eviction is not taken off"
    );
    assert_eq!(
        levels.besteffort,
        Some((7 << 30) - margin),
        "9 GiB - 50 % of 4 GiB"
    );
}

/// Beside a kubelet whose reserves are larger than the configured capacity.
#[test]
fn reserves_of_more_than_the_capacity_end_no_pod() {
    let over = Node {
        system_reserved: Reserved {
            memory: Bytes::gibi(22),
            ..Reserved::default()
        },
        ..node(None)
    };
    assert_eq!(Levels::of(&over, []).kubepods, None);
}

#[test]
fn levels_lie_below_limits_of_others() {
    let limited = reserve::within(&node(None), Bytes::gibi(3));
    assert_eq!(Levels::of(&limited, []).kubepods, Some(2 << 30));
    let wide = reserve::within(&node(None), Bytes::gibi(20));
    assert_eq!(Levels::of(&wide, []).kubepods, Some(9 << 30));
    let margin = DEFAULT_MARGIN.as_u64();
    let narrow = reserve::within(&node(None), Bytes::mebi(512));
    assert_eq!(
        Levels::of(&narrow, []).kubepods,
        Some((512 << 20) - margin),
        "a threshold of 1 GiB leaves nothing of it"
    );
    let bounds = TierBounds {
        burstable: Some(Bytes::gibi(20)),
        besteffort: Some(Bytes::gibi(1)),
    };
    let pods = [pod("g", 2, Some(500)), pod("b", 4, None)];
    let own = Levels::of(&node(Some(50)), &pods);
    assert_eq!(own.within(bounds).burstable, own.burstable);
    assert_eq!(own.within(bounds).besteffort, Some((1 << 30) - margin));
    let none = Levels::of(&node(None), &pods).within(bounds);
    assert_eq!(none.burstable, Some((20 << 30) - margin));
    assert_eq!(own.within(TierBounds::default()), own);
}

#[test]
fn a_token_is_never_used_twice() {
    let mut tokens = Tokens::default();
    let first = tokens.of(&"a".into());
    assert_eq!(tokens.of(&"a".into()), first);
    tokens.forget(&"a".into());
    assert_eq!(
        tokens.uid(first),
        Some(&"a".into()),
        "a report may be under way"
    );
    assert_ne!(tokens.of(&"a".into()), first);
    for _ in 0..REMEMBERED {
        tokens.of(&"b".into());
        tokens.forget(&"b".into());
    }
    assert_eq!(tokens.uid(first), None);
    assert_eq!(tokens.by_token.len(), 1 + REMEMBERED);
}
