//! `/v1`: its types, the published state, the server and the client.

pub mod client;
pub mod published;
pub mod server;
pub mod types;
