//! Pods from manifests at a URL.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use podwarden::api::types::EventKind;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{Case, Context, portable, skip};
use crate::harness::{Node, Options, PodSpec, Sandbox, eventually};

pub(super) const CASES: &[Case] = &[portable("static_pod_url", static_pod_url)];

type Answer = Arc<Mutex<(StatusCode, String)>>;

/// A web server with one page, for those who know the word.
pub(super) struct Web {
    answer: Answer,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Web {
    pub(super) fn start() -> Result<Self> {
        let answer: Answer = Arc::default();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let router = Router::new().fallback(page).with_state(Arc::clone(&answer));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, router).await
        });
        Ok(Self {
            answer,
            address,
            runtime: Some(runtime),
        })
    }

    /// What makes an agent one of those, for its configuration.
    pub(super) fn config(&self) -> String {
        format!(
            "staticPodURL: http://{}/pods.yaml?node=1\n\
             staticPodURLHeader: {{X-Word: [sesame]}}\nhttpCheckFrequency: 1s\n",
            self.address
        )
    }

    /// From now on the page is this.
    pub(super) fn serve(&self, code: StatusCode, text: &impl ToString) {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        *answer = (code, text.to_string());
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

async fn page(State(answer): State<Answer>, request: Request) -> Response {
    let word = request.headers().get("x-word");
    let path = request.uri().path_and_query().map(ToString::to_string);
    if word.is_none_or(|word| word != "sesame") {
        return StatusCode::FORBIDDEN.into_response();
    }
    if path.as_deref() != Some("/pods.yaml?node=1") {
        return StatusCode::NOT_FOUND.into_response();
    }
    let answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
    answer.clone().into_response()
}

fn list(specs: &[&PodSpec]) -> Value {
    let items: Vec<_> = specs.iter().map(|spec| spec.manifest()).collect();
    json!({"apiVersion": "v1", "kind": "PodList", "items": items})
}

fn expect_pods(node: &Node, specs: &[&PodSpec]) -> Result<()> {
    let wanted: BTreeSet<_> = specs.iter().map(|spec| spec.name.as_str()).collect();
    eventually(node.limit(), || {
        let pods = node.agent.pods()?;
        let found: BTreeSet<_> = pods.iter().map(|pod| pod.pod_ref.name.as_str()).collect();
        ensure!(found == wanted, "{found:?}, not {wanted:?}");
        Ok(())
    })
}

fn expect_problem(node: &Node, said: &str) -> Result<()> {
    eventually(node.limit(), || {
        let sources = node.agent.node()?.pod_sources;
        let source = sources.into_iter().find(|source| source.name == "http");
        let problem = source.context("/v1/node tells of no URL")?.problem;
        let problem = problem.unwrap_or_default();
        ensure!(problem.contains(said), "its problem is {problem:?}");
        Ok(())
    })
}

fn static_pod_url(context: &Context) -> Result<()> {
    if context.emulated() {
        skip("what a source of pods does is seen on a machine that is not emulated")?;
    }
    let web = Web::start()?;
    let (first, second) = (
        PodSpec::guaranteed("first", "64Mi"),
        PodSpec::best_effort("second"),
    );
    web.serve(StatusCode::OK, &first.manifest());
    let options = Options {
        config: web.config(),
        ..Options::default()
    };
    let node = Node::on(context, Sandbox::new()?, &options)?;
    expect_pods(&node, &[&first])?;
    web.serve(StatusCode::OK, &list(&[&first, &second]));
    expect_pods(&node, &[&first, &second])?;

    // Whatever goes wrong there, pods that were told of stay.
    web.serve(StatusCode::INTERNAL_SERVER_ERROR, &"");
    expect_problem(&node, "answered 500")?;
    web.serve(StatusCode::OK, &"");
    expect_problem(&node, "holds nothing")?;
    web.serve(StatusCode::OK, &"kind: [Pod");
    eventually(node.limit(), || {
        let said = node.agent.events(0)?.into_iter().any(|event| {
            matches!(event.kind, EventKind::Degraded { message } if message.contains("not YAML"))
        });
        ensure!(said, "nothing is said of the spoilt text");
        Ok(())
    })?;
    expect_pods(&node, &[&first, &second])?;
    web.serve(StatusCode::OK, &list(&[&second]));
    expect_pods(&node, &[&second])?;
    web.serve(StatusCode::OK, &list(&[]));
    expect_pods(&node, &[])?;
    node.finish()
}
