use super::*;

/// Writes BTF (kernel `Documentation/bpf/btf.rst`); types are numbered from 1 in order.
#[derive(Default)]
struct Writer {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

/// Kinds of `include/uapi/linux/btf.h`.
const INT: u32 = 1;
const PTR: u32 = 2;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const CONST: u32 = 10;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const ENUM64: u32 = 19;
/// The flag above the kind: members have bit sizes, enumerators are signed.
const FLAG: u32 = 1 << 31;

impl Writer {
    fn name(&mut self, name: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        if name.is_empty() {
            return 0;
        }
        let offset = self.strings.len();
        self.strings.extend(name.bytes().chain([0]));
        u32::try_from(offset).unwrap()
    }

    /// `words` follow the type; `entries` is how many they describe.
    fn add(
        &mut self,
        name: &str,
        kind: u32,
        entries: u32,
        size_or_type: u32,
        words: &[u32],
    ) -> u32 {
        let name = self.name(name);
        let info = (kind & FLAG) | ((kind & !FLAG) << 24) | entries;
        let head = [name, info, size_or_type];
        for word in head.iter().chain(words) {
            self.types.extend(word.to_le_bytes());
        }
        self.count += 1;
        self.count
    }

    /// Members are (name, type, offset word).
    fn members(&mut self, name: &str, kind: u32, members: &[(&str, u32, u32)]) -> u32 {
        let mut words = Vec::new();
        for (name, ty, offset) in members {
            words.extend([self.name(name), *ty, *offset]);
        }
        let count = u32::try_from(members.len()).unwrap();
        self.add(name, kind, count, 64, &words)
    }

    fn finish(self) -> KernelBtf {
        let length = |part: &[u8]| u32::try_from(part.len()).unwrap();
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let types = length(&self.types);
        for word in [24, 0, types, types, length(&self.strings)] {
            bytes.extend(u32::to_le_bytes(word));
        }
        bytes.extend(self.types);
        bytes.extend(self.strings);
        KernelBtf::from_bytes("test", &bytes).unwrap()
    }
}

/// A kernel with one of everything that is asked for.
fn kernel() -> KernelBtf {
    let mut w = Writer::default();
    let int = w.add("int", INT, 0, 4, &[32]);
    let info = w.members(
        "sched_info",
        STRUCT,
        &[("pcount", int, 0), ("last_queued", int, 128)],
    );
    let alias = w.add("info_t", TYPEDEF, 0, info, &[]);
    let qualified = w.add("", CONST, 0, alias, &[]);
    let inner = w.members("", STRUCT, &[("a", int, 0), ("b", int, 32)]);
    let union = w.members("", UNION, &[("", inner, 0), ("whole", int, 0)]);
    let task = w.members(
        "task_struct",
        STRUCT,
        &[
            ("state", int, 0),
            ("", union, 64),
            ("sched_info", qualified, 256),
        ],
    );
    // In this form the upper 8 bits of an offset are the bit field's size.
    w.members(
        "flags",
        FLAG | STRUCT,
        &[("bit", int, (1 << 24) | 8), ("word", int, 32)],
    );
    let values = [w.name("cpu_cgrp_id"), 0, w.name("memory_cgrp_id"), 4];
    w.add("cgroup_subsys_id", ENUM, 2, 4, &values);
    let values = [w.name("BELOW"), u32::MAX];
    w.add("signs", FLAG | ENUM, 1, 4, &values);
    let values = [w.name("ABOVE"), u32::MAX];
    w.add("no_signs", ENUM, 1, 4, &values);
    let values = [w.name("WIDE"), 5, 1];
    w.add("wide", ENUM64, 1, 8, &values);
    let void_ptr = w.add("", PTR, 0, 0, &[]);
    let task_ptr = w.add("", PTR, 0, task, &[]);
    let const_task = w.add("", CONST, 0, task, &[]);
    let const_task_ptr = w.add("", PTR, 0, const_task, &[]);
    let parameters = [
        0,
        void_ptr,
        0,
        int,
        0,
        task_ptr,
        0,
        const_task_ptr,
        0,
        void_ptr,
    ];
    let proto = w.add("", FUNC_PROTO, 5, 0, &parameters);
    let pointer = w.add("", PTR, 0, proto, &[]);
    w.add("btf_trace_sched_switch", TYPEDEF, 0, pointer, &[]);
    w.add("page_counter_try_charge", FUNC, 0, proto, &[]);
    w.finish()
}

#[test]
fn offsets_go_through_anonymous_members_typedefs_and_qualifiers() {
    let btf = kernel();
    let cases = [
        ("task_struct", "state", Some(0)),
        ("task_struct", "whole", Some(8)),
        ("task_struct", "b", Some(12)),
        ("task_struct", "sched_info", Some(32)),
        ("task_struct", "sched_info.last_queued", Some(48)),
        ("task_struct", "sched_info.nothing", None),
        ("task_struct", "state.nothing", None),
        ("task_struct", "nothing", None),
        ("task_struct", "", None),
        ("nothing", "state", None),
        ("flags", "bit", None),
        ("flags", "word", Some(4)),
    ];
    for (structure, path, offset) in cases {
        assert_eq!(btf.offset(structure, path), offset, "{structure}.{path}");
    }
}

#[test]
fn enumerators_keep_their_sign_and_width() {
    let btf = kernel();
    let value = |name, variant| btf.enum_value(name, variant);
    assert_eq!(value("cgroup_subsys_id", "memory_cgrp_id"), Some(4));
    assert_eq!(value("cgroup_subsys_id", "nothing"), None);
    assert_eq!(value("nothing", "memory_cgrp_id"), None);
    assert_eq!(value("signs", "BELOW"), Some(-1));
    assert_eq!(value("no_signs", "ABOVE"), Some(i64::from(u32::MAX)));
    assert_eq!(value("wide", "WIDE"), Some((1 << 32) + 5));
}

#[test]
fn tracepoints_tell_their_arguments_without_the_probes_own() {
    let btf = kernel();
    let arguments = btf.tracepoint_args("sched_switch").unwrap();
    assert_eq!(
        arguments,
        ["int", "task_struct *", "task_struct *", "void *"]
    );
    assert_eq!(btf.tracepoint_args("nothing"), None);
}

#[test]
fn ids_are_of_the_right_kind() {
    let btf = kernel();
    assert!(btf.func_exists("page_counter_try_charge"));
    assert!(!btf.func_exists("task_struct"));
    assert!(btf.tracepoint_id("sched_switch").is_some());
    assert_ne!(
        btf.tracepoint_id("sched_switch"),
        btf.func_id("page_counter_try_charge")
    );
    assert_eq!(btf.tracepoint_id("page_counter_try_charge"), None);
}

#[test]
fn what_is_not_btf_is_an_error_that_names_it() {
    for bytes in [&b""[..], b"not BTF at all, but long enough for a header"] {
        let error = KernelBtf::from_bytes("some file", bytes).unwrap_err();
        assert!(error.to_string().contains("some file"), "{error}");
    }
    let error = KernelBtf::from_file(Path::new("/nonexistent/btf")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/btf"), "{error}");
}

#[test]
fn names_looked_for_together_are_found_as_each_alone() {
    let together = kernel().with(&["task_struct", "flags", "cgroup_subsys_id", "no.e"]);
    let alone = kernel();
    for name in [
        "task_struct",
        "flags",
        "cgroup_subsys_id",
        "no.e",
        "sched_info",
    ] {
        assert_eq!(together.ids(name), alone.ids(name), "{name}");
    }
    assert_eq!(
        together.offset("task_struct", "sched_info.last_queued"),
        Some(48)
    );
    assert_eq!(together.offset("no.e", "a"), None);
}

#[test]
fn a_file_that_cannot_be_mapped_is_copied() {
    let copied = copy(Path::new("/proc/self/status")).unwrap();
    let length = File::from(copied).metadata().unwrap().len();
    assert!(length > 0);
}
