use super::*;
use crate::kernel::support::Row;

fn decision(profile: Profile, level: Level) -> Decision {
    let row = |fact, found: &str, level| Row {
        fact,
        found: found.to_owned(),
        enables: "something good",
        lost_without: "something good is lost",
        level,
        part: None,
    };
    Decision {
        profile,
        facts: vec![
            row("lockdown", "none", Level::Ok),
            row("fentry program", "refused (attach: EPERM)", level),
        ],
    }
}

#[test]
fn golden_table() {
    let expected = "\
ok    lockdown        none                     something good
lost  fentry program  refused (attach: EPERM)  something good
                      -> something good is lost

profile: standard (accounts from the kernel, levels checked at context switches, by eventfd and sampling)
";
    assert_eq!(
        table(&decision(Profile::Standard, Level::Degraded)),
        expected
    );
}

#[test]
fn golden_table_of_an_unusable_node() {
    let text = table(&decision(Profile::Unusable, Level::Fatal));
    assert!(text.contains("FAIL  fentry program"), "{text}");
    assert!(
        text.ends_with("profile: unusable (podwarden cannot run here)\n"),
        "{text}"
    );
}

#[test]
fn golden_json() {
    let json = serde_json::to_value(decision(Profile::Full, Level::Ok)).unwrap();
    let row = |fact: &str, found: &str| {
        serde_json::json!({
            "fact": fact, "found": found, "enables": "something good",
            "lostWithout": "something good is lost", "level": "ok",
        })
    };
    let expected = serde_json::json!({
        "profile": "full",
        "facts": [row("lockdown", "none"), row("fentry program", "refused (attach: EPERM)")],
    });
    assert_eq!(json, expected);
}

#[test]
fn exit_codes() {
    let cases = [
        (Profile::Full, Level::Ok, 0),
        (Profile::Full, Level::Degraded, 1),
        (Profile::Standard, Level::Degraded, 1),
        (Profile::Sampling, Level::Degraded, 1),
        (Profile::Unusable, Level::Fatal, 2),
    ];
    for (profile, level, code) in cases {
        assert_eq!(
            exit_code(&decision(profile, level)),
            code,
            "{profile} {level:?}"
        );
    }
}
