//! What the tasks share with the end-to-end package, which runs the cases and the virtual machines: where
//! things are, what must be installed, how programs are run, and how stages are counted.

pub mod apt;
pub mod cases;
pub mod cmd;
pub mod documents;
pub mod image;
pub mod oci;
pub mod paths;
pub mod platform;
pub mod report;
pub mod setup;
pub mod step;
pub mod toolchain;
