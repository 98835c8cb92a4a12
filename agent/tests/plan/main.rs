//! `podwarden plan` and `explain` as they are called.

mod bad_input;
mod explained;
mod planned;
mod run;
