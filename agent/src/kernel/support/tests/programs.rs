//! What a missing member, another signature or a missing capability costs the kernel programs.

use podwarden_abi::Figure;

use super::*;

#[test]
fn a_missing_member_costs_its_figure_alone() {
    let without = |figure| KernelSupport {
        lacking: Some(
            hooks::MEMBERS
                .iter()
                .filter(|m| m.figure == figure)
                .copied()
                .collect(),
        ),
        ..capable_host()
    };
    for figure in Figure::ALL {
        let (name, _) = hooks::figure(figure);
        let profile = match figure {
            Figure::Accounts => Profile::Sampling,
            Figure::Levels => Profile::Standard,
            _ => Profile::Full,
        };
        let verdict = verdict(&without(figure));
        assert_eq!(verdict, (profile, Level::Degraded, vec![name]));
        assert!(decide(&without(figure)).reports(name));
    }
}

#[test]
fn a_tracepoint_with_other_arguments_is_as_good_as_none() {
    let mut support = capable_host();
    let found = support.tracepoints.as_mut().unwrap();
    found.insert("sched_process_exit", vec!["pid *".to_owned()]);
    let decision = decide(&support);
    let lost: Vec<_> = decision.degradations().collect();
    assert_eq!(
        lost,
        [
            "exits are unknown (sched_process_exit: it has the arguments (pid *), known is (task_struct *))"
        ]
    );
    assert_eq!(decision.profile, Profile::Full);
}

#[test]
fn cap_sys_admin_stands_in_for_bpf_and_perfmon() {
    let held = CapabilitySet::all() - CapabilitySet::BPF - CapabilitySet::PERFMON;
    let support = |capabilities| KernelSupport {
        capabilities: Some(capabilities),
        ..capable_host()
    };
    assert_eq!(verdict(&support(held)).2, Vec::<&str>::new());
    let held = held - CapabilitySet::SYS_ADMIN;
    assert_eq!(verdict(&support(held)).2, ["CAP_BPF", "CAP_PERFMON"]);
}
