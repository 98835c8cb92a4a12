//! Reclaimed resources: what the node has to spare, and who learns of it.
//!
//! | module | purpose |
//! |---|---|
//! | `figures` | figures of a sampling pass -> what is offered |
//! | `window` | usage over a time; values only |
//! | `prediction` | what pods and system will use at their peak |
//! | `publish` | the offer in the Node's status |
//! | `pace` | when it is published; values only |

#[cfg(test)]
mod cost;
mod figures;
mod pace;
mod prediction;
mod publish;
mod window;

pub(crate) use self::publish::{FormerOffer, Publisher};
pub use self::{
    figures::Reclaimer,
    publish::{Found, Offer},
};
