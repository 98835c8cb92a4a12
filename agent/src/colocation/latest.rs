//! The latest value of a thread that must not wait, for others to read.

use std::sync::{Mutex, PoisonError};

#[derive(Debug, Default)]
pub(super) struct Latest<T>(Mutex<T>);

impl<T: Clone> Latest<T> {
    /// Another value. While a reader is at it the value stays: the next one replaces it.
    pub(super) fn set(&self, value: T) {
        if let Ok(mut latest) = self.0.try_lock() {
            *latest = value;
        }
    }

    /// The value that was set last.
    pub(super) fn get(&self) -> T {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
