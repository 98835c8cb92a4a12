//! What the cgroups below `kubepods` hold: read ([`sense`]), written ([`act`]), kept against other writers
//! (`drift`), brought to the tiers' targets ([`converge`]).

pub mod act;
pub mod converge;
pub(crate) mod drift;
pub(crate) mod oom_score;
pub mod recorded;
pub mod sense;
