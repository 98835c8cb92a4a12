//! `deploy/docs/hooks.md`, which the tables make.

use std::{fmt::Write as _, fs, path::Path};

use aya_obj::btf::BtfKind;

use super::*;

/// Without any of the programs that have no text of their own.
const NOTHING_WORKS: &str = "no kernel program runs: profile `sampling`";

fn text() -> String {
    let mut text = "\
# Hooks

Generated from `agent/src/kernel/hooks.rs`; `UPDATE_DOCS=1 cargo test -p podwarden --lib hooks` writes it.

The programs are attached in this order. `podwarden check` shows which of them this kernel takes. The agent reads
the arguments of each tracepoint from the kernel's BTF and attaches a program only where they are as listed; of two
programs on one tracepoint it attaches the one that fits.

| program | hook | arguments that it reads | gives | lost without it |
|---|---|---|---|---|
"
    .to_owned();
    let rows = HOOKS.iter().map(|hook| (hook, "tp_btf"));
    for (hook, kind) in rows.chain([(&CHARGE, "fentry"), (&WALK, "iter")]) {
        let arguments: Vec<_> = hook.arguments.iter().map(|a| format!("`{a}`")).collect();
        let _ = writeln!(
            text,
            "| `{}` | {kind} `{}` | {} | {} | {} |",
            hook.program,
            hook.tracepoint,
            arguments.join(", "),
            hook.enables,
            hook.lost_without.unwrap_or(NOTHING_WORKS)
        );
    }
    text += "
The program `flush` is attached to nothing: the agent runs it on a CPU to account for what runs there right now.

## Structure members

The programs read these members at offsets from the kernel's BTF. A member that a kernel lacks costs the figure
that needs it.

| figure | members | lost without one of them |
|---|---|---|
";
    for figure_of in Figure::ALL {
        let (name, lost) = figure(figure_of);
        let members = MEMBERS.iter().filter(|member| member.figure == figure_of);
        let members: Vec<_> = members.map(|m| format!("`{}`", m.name())).collect();
        let _ = writeln!(
            text,
            "| {name} | {} | {} |",
            members.join(", "),
            lost.unwrap_or(NOTHING_WORKS)
        );
    }
    text
}

#[test]
fn the_page_of_hooks_is_what_the_tables_make() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/docs/hooks.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&page, text()).unwrap();
    }
    let found = fs::read_to_string(&page).unwrap_or_default();
    assert!(
        found == text(),
        "{} is out of date: UPDATE_DOCS=1 cargo test -p podwarden --lib hooks",
        page.display()
    );
}

#[test]
fn hooks_of_one_tracepoint_stand_beside_each_other() {
    let mut seen = Vec::new();
    for hooks in by_tracepoint() {
        assert!(!seen.contains(&hooks[0].tracepoint));
        seen.push(hooks[0].tracepoint);
        let lost = hooks.iter().map(|hook| hook.lost_without);
        assert!(lost.clone().all(|text| text == hooks[0].lost_without));
    }
}

#[test]
fn the_first_hook_whose_arguments_fit_is_chosen() {
    let victims: Vec<_> = by_tracepoint().filter(|h| h.len() == 2).collect();
    let [victims] = victims[..] else {
        panic!("{victims:?}");
    };
    let choice = |arguments: &[&str]| {
        let found: Vec<_> = arguments.iter().map(|a| (*a).to_owned()).collect();
        choose(victims, Some(&found)).map(|hook| hook.program)
    };
    assert_eq!(choice(&["task_struct *", "int"]), Ok("mark_victim_task"));
    assert_eq!(choice(&["int"]), Ok("mark_victim_pid"));
    assert!(
        choice(&[])
            .unwrap_err()
            .contains("known is (task_struct *) or (int)")
    );
    assert_eq!(choose(victims, None), Err("no such tracepoint".to_owned()));
}

#[test]
fn a_program_is_attached_by_the_number_that_the_whole_of_the_kernels_types_has() {
    let all = aya::Btf::from_sys_fs().unwrap();
    let targets = targets(&kernel_types().unwrap()).unwrap();
    let mut found = 0;
    for name in target_names() {
        for kind in [BtfKind::Typedef, BtfKind::Func] {
            let expected = all.id_by_type_name_kind(&name, kind).ok();
            assert_eq!(
                targets.id_by_type_name_kind(&name, kind).ok(),
                expected,
                "{name}"
            );
            found += usize::from(expected.is_some());
        }
    }
    assert!(found > HOOKS.len() / 2, "{found} of {} hooks", HOOKS.len());
}
