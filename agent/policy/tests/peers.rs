//! Golden tables: what the kubelet and runc compute, taken from their own tests or derived from
//! their formulas. Rows that differ on purpose say so, and `deploy/docs/differences.md` says why.

#[path = "support/pods.rs"]
mod support;

mod peers {
    mod cpu;
    mod evict;
    mod kubelet_1_36;
    mod memory;
    mod names;
    mod oom;
    mod pods;
}
