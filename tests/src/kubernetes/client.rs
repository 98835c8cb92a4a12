//! The API server, asked by the administrator from a thread in the enclosure's network namespace.

use std::fs::File;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use axum::http::Request;
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client as Kube, Config};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::harness::{Answer, https_get};

/// Pods of the cases.
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";

/// See the module.
pub(crate) struct Client {
    runtime: Runtime,
    kube: Kube,
    network: File,
    /// How long one request may take.
    limit: Duration,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// The server of a kubeconfig, in this network namespace; a request may take `limit`.
    pub(crate) fn new(kubeconfig: &str, network: File, limit: Duration) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let file = Kubeconfig::read_from(kubeconfig)?;
        let kube = runtime.block_on(async {
            let mut config =
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
            config.connect_timeout = Some(limit);
            // It would end a connection that waits for the next request, while that is sent: each request has its own limit.
            config.read_timeout = None;
            anyhow::Ok(Kube::try_from(config)?)
        })?;
        Ok(Self {
            runtime,
            kube,
            network,
            limit,
        })
    }

    /// An object or a list.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        let found = self.find(path)?;
        found.with_context(|| format!("there is no {path}"))
    }

    /// The same; `None` where the server has none.
    pub(crate) fn find(&self, path: &str) -> Result<Option<Value>> {
        match self.send("GET", path, "", Vec::new()) {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error).with_context(|| format!("GET {path}")),
        }
    }

    /// The objects of a list.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<Value>> {
        let mut list = self.get(path)?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => bail!("{path} is no list"),
        }
    }

    /// Makes an object; the answer is what the server made of it.
    pub(crate) fn create(&self, path: &str, object: &Value) -> Result<Value> {
        let body = object.to_string().into_bytes();
        let made = self.send("POST", path, "application/json", body);
        made.with_context(|| format!("POST {path}"))
    }

    /// A merge patch (RFC 7386).
    pub(crate) fn patch(&self, path: &str, patch: &Value) -> Result<Value> {
        let body = patch.to_string().into_bytes();
        let made = self.send("PATCH", path, "application/merge-patch+json", body);
        made.with_context(|| format!("PATCH {path}"))
    }

    /// Deletes an object or a collection; what is not there is as good as deleted.
    pub(crate) fn delete(&self, path: &str) -> Result<()> {
        match self.send("DELETE", path, "", Vec::new()) {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop).with_context(|| format!("DELETE {path}")),
        }
    }

    /// The answer to a request, whatever it is: its HTTP status, and the objects in it, of a watch one an event.
    pub(crate) fn answer(
        &self,
        method: &str,
        path: &str,
        content: &str,
        body: &Value,
    ) -> Result<(u16, Vec<Value>)> {
        let mut request = Request::builder().method(method).uri(path);
        if !content.is_empty() {
            request = request.header("content-type", content);
        }
        let body = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let request = request.body(Body::from(body))?;
        let answer = self.within(|| {
            self.runtime.block_on(async {
                let answer = async {
                    let answer = self.kube.send(request).await?;
                    let code = answer.status().as_u16();
                    let body = answer.into_body().collect().await?.to_bytes();
                    anyhow::Ok((code, body))
                };
                tokio::time::timeout(self.limit, answer).await?
            })
        });
        let (code, body) = answer?.with_context(|| format!("{method} {path}"))?;
        let said = serde_json::Deserializer::from_slice(&body).into_iter();
        let said = said.collect::<Result<Vec<Value>, _>>();
        Ok((
            code,
            said.unwrap_or_else(|_| vec![String::from_utf8_lossy(&body).into()]),
        ))
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        content: &str,
        body: Vec<u8>,
    ) -> Result<Value, kube::Error> {
        let mut request = Request::builder().method(method).uri(path);
        if !content.is_empty() {
            request = request.header("content-type", content);
        }
        let request = request.body(body).map_err(kube::Error::HttpError)?;
        let asked = self.within(|| {
            self.runtime.block_on(async {
                let asked = tokio::time::timeout(self.limit, self.kube.request(request)).await;
                asked.unwrap_or_else(|late| Err(kube::Error::Service(Box::new(late))))
            })
        });
        asked.unwrap_or_else(|errno| Err(kube::Error::Service(Box::new(errno))))
    }

    /// `GET path` over TLS from a port of the node, with a bearer token where one is given.
    pub(crate) fn get_from_node(
        &self,
        port: u16,
        path: &str,
        token: Option<&str>,
    ) -> Result<Answer> {
        let address = (Ipv4Addr::LOCALHOST, port).into();
        let (answer, _) = self.within(|| https_get(address, path, token))??;
        Ok(answer)
    }

    /// Does it in the enclosure's network namespace.
    fn within<T: Send>(&self, act: impl FnOnce() -> T + Send) -> nix::Result<T> {
        // A thread's network namespace is its own.
        thread::scope(|scope| {
            let acted = scope.spawn(|| {
                setns(&self.network, CloneFlags::CLONE_NEWNET)?;
                Ok(act())
            });
            acted
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}
