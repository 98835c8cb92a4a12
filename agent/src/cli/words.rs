//! The words of the command line, for the API to say.

use super::{events, explain};
use crate::api::published::Presenter;

/// The same sentences and explanations that the terminal shows.
pub const PRESENTER: Presenter = Presenter {
    sentence: events::text::sentence,
    explain: explain::of_recorded,
};
