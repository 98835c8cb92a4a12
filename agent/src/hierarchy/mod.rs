//! What the cgroups below `kubepods` hold: read ([`sense`]), written ([`act`]), kept against other writers
//! (`drift`), brought to the tiers' targets ([`converge`]); `fresh` is for cgroups that are new.

pub mod act;
pub mod converge;
pub(crate) mod drift;
pub(crate) mod fresh;
pub(crate) mod oom_score;
pub mod recorded;
pub mod sense;
mod starting;
