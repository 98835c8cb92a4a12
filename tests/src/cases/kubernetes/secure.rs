//! The listener for other machines, whose clients a real API server reviews.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::LIMIT;
use crate::cases::{Case, Context, case};
use crate::harness::eventually;
use crate::kubernetes::Cluster;

pub(in crate::cases) const CASES: &[Case] = &[case("kubernetes_secure", kubernetes_secure)];

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ROLE: &str = "metrics-reader";
const PORT: u16 = 9596;

/// A service account with the right gets the metrics, one without it 403, an unknown token 401.
fn kubernetes_secure(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    let remove = || -> Result<()> {
        for name in ["scraper", "other"] {
            cluster.api.delete(&format!("{ACCOUNTS}/{name}"))?;
        }
        for kind in ["clusterrolebindings", "clusterroles"] {
            cluster.api.delete(&format!("{RBAC}/{kind}/{ROLE}"))?;
        }
        Ok(())
    };
    remove()?;
    // The address of the node's pods: any but loopback.
    cluster.agent_with(|shipped| format!("{shipped}secureListen: 0.0.0.0:{PORT}\n"))?;
    let role = format!("{RBAC}/clusterroles/podwarden");
    let granted = cluster.api.get(&role)?["rules"].take();
    let checked = reviewed(&cluster, &role);
    cluster.api.patch(&role, &json!({"rules": granted}))?;
    remove()?;
    checked?;
    cluster.clear()
}

fn reviewed(cluster: &Cluster, agents_role: &str) -> Result<()> {
    let token = |name: &str| -> Result<String> {
        let account = json!({"metadata": {"name": name}});
        cluster.api.create(ACCOUNTS, &account)?;
        let request =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let made = cluster
            .api
            .create(&format!("{ACCOUNTS}/{name}/token"), &request)?;
        let token = made["status"]["token"].as_str();
        token.map(str::to_owned).context("no token was made")
    };
    let (scraper, other) = (token("scraper")?, token("other")?);
    cluster.api.create(
        &format!("{RBAC}/clusterroles"),
        &json!({
            "metadata": {"name": ROLE},
            "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
        }),
    )?;
    cluster.api.create(
        &format!("{RBAC}/clusterrolebindings"),
        &json!({
            "metadata": {"name": ROLE},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
            "subjects": [{"kind": "ServiceAccount", "name": "scraper", "namespace": "default"}],
        }),
    )?;
    let expect = |path: &str, token: Option<&str>, status: u16| {
        eventually(LIMIT, || {
            let answer = cluster.api.get_from_node(PORT, path, token)?;
            ensure!(
                answer.status == status,
                "{}: {}",
                answer.status,
                answer.text()
            );
            Ok(answer)
        })
        .with_context(|| format!("GET {path} with {} token", token.map_or("no", |_| "a")))
    };
    expect("/healthz", None, 200)?;
    // The shipped role has no right to ask for reviews: nothing is let in.
    expect("/metrics", Some(&scraper), 503)?;
    let mut rules = cluster.api.get(agents_role)?["rules"].take();
    let all = rules.as_array_mut().context("it has no rules")?;
    all.extend([
        json!({"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}),
        json!({"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]}),
    ]);
    cluster.api.patch(agents_role, &json!({"rules": rules}))?;
    let metrics = expect("/metrics", Some(&scraper), 200)?;
    ensure!(
        metrics.text().contains("\npodwarden_info{"),
        "no podwarden_info"
    );
    expect("/metrics", Some(&other), 403)?;
    expect("/v1/node", Some(&scraper), 403)?;
    expect("/metrics", Some("no-such-token"), 401)?;
    expect("/metrics", None, 401)?;
    Ok(())
}
