//! The messages of CRI v1 that the agent uses, with the fields that it reads.
//!
//! Names and numbers are those of `pkg/apis/runtime/v1/api.proto` of kubernetes/cri-api. What a runtime
//! sends besides is skipped, as protobuf has it, so that a newer runtime is no trouble.

use std::collections::BTreeMap;

/// The service's methods, as gRPC paths.
pub mod method {
    /// [`super::VersionRequest`] -> [`super::VersionResponse`].
    pub const VERSION: &str = "/runtime.v1.RuntimeService/Version";
    /// [`super::ListPodSandboxRequest`] -> [`super::ListPodSandboxResponse`].
    pub const LIST_POD_SANDBOX: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
    /// [`super::ListContainersRequest`] -> [`super::ListContainersResponse`].
    pub const LIST_CONTAINERS: &str = "/runtime.v1.RuntimeService/ListContainers";
    /// [`super::StopContainerRequest`] -> [`super::Nothing`].
    pub const STOP_CONTAINER: &str = "/runtime.v1.RuntimeService/StopContainer";
    /// [`super::StopPodSandboxRequest`] -> [`super::Nothing`].
    pub const STOP_POD_SANDBOX: &str = "/runtime.v1.RuntimeService/StopPodSandbox";
}

/// The version of the API between kubelet and runtime that a request may name; runtimes ignore it.
pub const KUBELET_API_VERSION: &str = "0.1.0";

/// An answer that says nothing.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Nothing {}

/// Asks for name and version.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VersionRequest {
    /// [`KUBELET_API_VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
}

/// Name and version.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VersionResponse {
    /// `containerd`, `cri-o`.
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    #[prost(string, tag = "3")]
    pub runtime_version: String,
    /// `v1`.
    #[prost(string, tag = "4")]
    pub runtime_api_version: String,
}

/// Asks for all sandboxes.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ListPodSandboxRequest {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListPodSandboxResponse {
    /// In no order.
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<PodSandbox>,
}

/// Whose sandbox it is.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PodSandboxMetadata {
    /// The pod's name.
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// Which of the pod's sandboxes, one after another from 0.
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PodSandbox {
    /// The runtime's id.
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<PodSandboxMetadata>,
    /// [`SandboxState`].
    #[prost(enumeration = "SandboxState", tag = "3")]
    pub state: i32,
    /// What the kubelet wrote on it.
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: BTreeMap<String, String>,
    /// The pod's annotations as the kubelet has them, its own among them.
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: BTreeMap<String, String>,
    /// Which runtime made it (RuntimeClass); empty for the default one.
    #[prost(string, tag = "7")]
    pub runtime_handler: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum SandboxState {
    /// It runs.
    Ready = 0,
    /// Its process has ended, or it was stopped.
    NotReady = 1,
}

/// Asks for all containers.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ListContainersRequest {}

/// All containers; sandboxes are not among them.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListContainersResponse {
    /// In no order.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Container>,
}

/// Which of its pod's containers it is.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerMetadata {
    /// As in the pod's spec.
    #[prost(string, tag = "1")]
    pub name: String,
    /// How often it was restarted.
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Container {
    /// The runtime's id.
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<ContainerMetadata>,
    /// [`ContainerState`].
    #[prost(enumeration = "ContainerState", tag = "6")]
    pub state: i32,
    /// What the kubelet wrote on it.
    #[prost(btree_map = "string, string", tag = "8")]
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum ContainerState {
    /// Made and not started.
    Created = 0,
    /// It runs.
    Running = 1,
    /// It has ended.
    Exited = 2,
    /// The runtime does not know.
    Unknown = 3,
}

/// Ends a container; twice is fine.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StopContainerRequest {
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// Seconds between SIGTERM and SIGKILL; 0 sends SIGKILL at once.
    #[prost(int64, tag = "2")]
    pub timeout: i64,
}

/// Ends a sandbox with all that is in it and gives its network back; twice is fine.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StopPodSandboxRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
}
