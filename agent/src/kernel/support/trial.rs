//! Asks the kernel the only question whose answer counts: will it take such a program?
//!
//! The programs are two instructions long (`r0 = 0; exit`), and everything is closed, and with it
//! detached, before the answer is given. Loading through a library would need an object file.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use aya_obj::generated::{bpf_attach_type, bpf_cmd, bpf_insn, bpf_map_type, bpf_prog_type};

use super::Trial;
use crate::kernel::sys::{bpf, empty};

const PAGE: u32 = 4096;

/// A ring buffer of one page.
pub(super) fn ring_buffer() -> Trial {
    let mut attr = empty();
    attr.__bindgen_anon_1.map_type = bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32;
    // A page or more, a power of two.
    attr.__bindgen_anon_1.max_entries = PAGE;
    Trial::of("create a ring buffer", bpf(bpf_cmd::BPF_MAP_CREATE, &attr))
}

/// A `tp_btf` program on the tracepoint with this type id; loaded, not attached: what attaches one
/// attaches all.
pub(super) fn tracepoint(btf_id: u32) -> Trial {
    Trial::of(
        "load a tp_btf program",
        load(bpf_attach_type::BPF_TRACE_RAW_TP, btf_id),
    )
}

/// An fentry program on the function with this type id. Attached too, for an instant: a kernel that
/// may not change its own code refuses only then.
pub(super) fn fentry(btf_id: u32) -> Trial {
    let program = match load(bpf_attach_type::BPF_TRACE_FENTRY, btf_id) {
        Ok(program) => program,
        Err(error) => return Trial::of("load an fentry program", Err(error)),
    };
    let mut attr = empty();
    attr.raw_tracepoint.prog_fd = program.as_raw_fd().cast_unsigned();
    let link = bpf(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &attr);
    Trial::of("attach an fentry program", link)
}

/// An iterator with this type id (`bpf_iter_cgroup`); loaded, not attached.
pub(super) fn iterator(btf_id: u32) -> Trial {
    Trial::of(
        "load an iterator",
        load(bpf_attach_type::BPF_TRACE_ITER, btf_id),
    )
}

fn load(attach: bpf_attach_type, btf_id: u32) -> io::Result<OwnedFd> {
    // Opcodes of include/uapi/linux/bpf.h and bpf_common.h.
    const MOV64_IMMEDIATE: u8 = 0xb7;
    const EXIT: u8 = 0x95;
    let instruction = |code| bpf_insn {
        code,
        _bitfield_align_1: [],
        // Both registers are r0.
        _bitfield_1: Default::default(),
        off: 0,
        imm: 0,
    };
    let instructions = [instruction(MOV64_IMMEDIATE), instruction(EXIT)];
    let mut attr = empty();
    attr.__bindgen_anon_3.prog_type = bpf_prog_type::BPF_PROG_TYPE_TRACING as u32;
    attr.__bindgen_anon_3.insn_cnt = 2;
    attr.__bindgen_anon_3.insns = instructions.as_ptr() as u64;
    attr.__bindgen_anon_3.license = c"GPL".as_ptr() as u64;
    attr.__bindgen_anon_3.expected_attach_type = attach as u32;
    attr.__bindgen_anon_3.attach_btf_id = btf_id;
    bpf(bpf_cmd::BPF_PROG_LOAD, &attr)
}
