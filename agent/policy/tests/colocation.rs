//! Co-location: classes, and the laws of what best effort may use and protected pods may exceed.

#[path = "support/pods.rs"]
mod support;

mod colocation {
    mod class;
}
