//! Co-location: classes, and the laws of what best effort may use and protected pods may exceed.

#[path = "support/pods.rs"]
mod support;

mod colocation {
    mod burst;
    mod class;
    mod evict_cpu;
    mod hold;
    mod proactive;
    mod suppress;
    mod vectors;
}
