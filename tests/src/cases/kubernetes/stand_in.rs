//! The stand-in API server beside the real one: the same requests, and the same answers as far as a node agent reads
//! them.

use std::collections::BTreeSet;
use std::fs::File;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::apiserver::ApiServer;
use crate::cases::{Case, Context, case};
use crate::kubernetes::{Client, PODS, REQUEST};

pub(in crate::cases) const CASES: &[Case] = &[case("kubernetes_stand_in", kubernetes_stand_in)];

/// No such node exists: no kubelet looks at its pods.
const NOWHERE: &str = "nowhere";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json";
/// A token that the stand-in knows.
const TOKEN: &str = "known";

fn kubernetes_stand_in(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    let real = Script::of(&cluster.api, &cluster.api_as("expired")?, &|| ())?;
    let dir = tempfile::tempdir()?;
    let server = ApiServer::start()?;
    // A server has always written something: version 0 stands for any.
    server.compact();
    server.manners(|manners| manners.tokens = BTreeSet::from([TOKEN.to_owned()]));
    let client = |token: &str| {
        let file = dir.path().join(token);
        server.kubeconfig(&file, Some(token))?;
        let network = File::open("/proc/self/ns/net").context("open the network namespace")?;
        Client::new(&file.display().to_string(), network, REQUEST)
    };
    // A server forgets each five minutes: the stand-in does where this one has.
    let forgets = real.iter().any(|(_, answer)| {
        let object = answer.pointer("/said/0/object");
        object.is_some_and(|object| object["reason"] == "Expired")
    });
    context.figure("versions_forgotten", f64::from(u8::from(forgets)), "");
    let forget = || {
        if forgets {
            server.compact();
        }
    };
    let stand_in = Script::of(&client(TOKEN)?, &client("expired")?, &forget)?;
    context.figure("answers_compared", real.len() as f64, "");
    let differences: Vec<_> = real
        .iter()
        .zip(&stand_in)
        .filter(|((_, real), (_, stand_in))| real != stand_in)
        .map(|((asked, real), (_, stand_in))| {
            format!("{asked}\n  real:     {real}\n  stand-in: {stand_in}")
        })
        .collect();
    ensure!(
        real.len() == stand_in.len() && differences.is_empty(),
        "{} of {} answers differ:\n{}",
        differences.len(),
        real.len(),
        differences.join("\n")
    );
    Ok(())
}

/// What was asked, and what of the answer counts.
type Answers = Vec<(String, Value)>;

struct Script<'a> {
    client: &'a Client,
    answers: Answers,
}

impl<'a> Script<'a> {
    /// Asks a server; `refused` has a token that counts no longer.
    /// `forget` is called before a version is asked for that may be forgotten.
    fn of(client: &'a Client, refused: &'a Client, forget: &dyn Fn()) -> Result<Answers> {
        let mut this = Self {
            client,
            answers: Vec::new(),
        };
        let listed = this.objects()?;
        this.patches()?;
        this.lists()?;
        this.watches(&listed, forget)?;
        this.ends()?;
        let mut others = Self {
            client: refused,
            answers: Vec::new(),
        };
        others.ask("GET", "/api/v1/pods", "", &Value::Null)?;
        others.ask(
            "GET",
            "/api/v1/pods?watch=true&resourceVersion=0",
            "",
            &Value::Null,
        )?;
        this.answers.extend(others.answers);
        Ok(this.answers)
    }

    fn ask(&mut self, method: &str, path: &str, content: &str, body: &Value) -> Result<Vec<Value>> {
        let (code, said) = self.client.answer(method, path, content, body)?;
        let asked = format!(
            "{}. {method} {} {body}",
            self.answers.len(),
            without_versions(path)
        );
        let counts: Vec<_> = said.iter().map(counts).collect();
        self.answers
            .push((asked, json!({"code": code, "said": counts})));
        Ok(said)
    }

    /// Objects are made, and found by name; the answer is a version from before.
    fn objects(&mut self) -> Result<String> {
        let listed = version(&self.ask("GET", PODS, "", &Value::Null)?)?;
        for name in ["a", "b", "c"] {
            self.ask("POST", PODS, JSON, &pod(name))?;
        }
        self.ask("POST", PODS, JSON, &pod("a"))?;
        self.ask("GET", &format!("{PODS}/a"), "", &Value::Null)?;
        self.ask("GET", &format!("{PODS}/z"), "", &Value::Null)?;
        self.ask("GET", "/api/v1/nodes/nowhere", "", &Value::Null)?;
        self.ask("PUT", PODS, JSON, &pod("a"))?;
        self.ask("GET", "/api/v1/unknowns", "", &Value::Null)?;
        Ok(listed)
    }

    fn patches(&mut self) -> Result<()> {
        let (a, status) = (format!("{PODS}/a"), format!("{PODS}/a/status"));
        // A status is changed by its subresource alone, and nothing else by that.
        let both = json!({
            "metadata": {"labels": {"colour": "red"}},
            "status": {"phase": "Running", "reason": "Said"},
        });
        self.ask("PATCH", &a, MERGE, &both)?;
        self.ask(
            "PATCH",
            &status,
            STRATEGIC,
            &json!({"status": {"phase": "Running"}}),
        )?;
        let condition = |kind: &str| json!({"type": kind, "status": "True"});
        for kind in ["First", "Second"] {
            let conditions = json!({"status": {"conditions": [condition(kind)]}});
            self.ask("PATCH", &status, STRATEGIC, &conditions)?;
        }
        let only = json!({"status": {"conditions": [condition("Third")]}});
        self.ask("PATCH", &status, MERGE, &only)?;
        let moved = json!({"spec": {"nodeName": "elsewhere"}, "status": {"message": "m"}});
        self.ask("PATCH", &status, STRATEGIC, &moved)?;
        let annotated = json!({"metadata": {"annotations": {"noted": "1"}}});
        self.ask("PATCH", &status, STRATEGIC, &annotated)?;
        // To a version or an object that is no more.
        let old = json!({"metadata": {"resourceVersion": "1"}, "status": {"message": "late"}});
        self.ask("PATCH", &status, STRATEGIC, &old)?;
        self.ask("PATCH", &a, MERGE, &old)?;
        let uid = "00000000-0000-0000-0000-000000000000";
        let other = json!({"metadata": {"uid": uid}, "status": {"message": "other"}});
        self.ask("PATCH", &status, STRATEGIC, &other)?;
        let replaced = json!({"metadata": {"uid": uid, "resourceVersion": "1"}, "status": {"message": "other"}});
        self.ask("PATCH", &status, STRATEGIC, &replaced)?;
        self.ask("PATCH", &format!("{PODS}/z/status"), STRATEGIC, &both)?;
        self.ask("PATCH", &status, JSON, &both)?;
        self.ask(
            "PATCH",
            &a,
            MERGE,
            &json!({"metadata": {"labels": {"colour": null}}}),
        )?;
        Ok(())
    }

    fn lists(&mut self) -> Result<()> {
        let selecting = |selector: &str| format!("{PODS}?fieldSelector={selector}");
        for selector in [
            "spec.nodeName%3Dnowhere",
            "spec.nodeName%3Dnowhere,metadata.name%3Db",
            "spec.nodeName%3D%3Dnowhere",
            "spec.nodeName!%3Dnowhere",
            "metadata.name%3Dz",
            "status.phase%3DRunning",
            "spec.colour%3Dred",
            "nonsense",
        ] {
            self.ask("GET", &selecting(selector), "", &Value::Null)?;
        }
        let all = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{NOWHERE}");
        self.ask("GET", &format!("{all}&resourceVersion=0"), "", &Value::Null)?;
        let said = self.ask("GET", &format!("{all}&limit=2"), "", &Value::Null)?;
        let more = said[0]["metadata"]["continue"]
            .as_str()
            .context("it is no page")?;
        let more: String = more.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.ask(
            "GET",
            &format!("{all}&limit=2&continue={more}"),
            "",
            &Value::Null,
        )?;
        self.ask(
            "GET",
            &format!("{all}&limit=2&continue=nonsense"),
            "",
            &Value::Null,
        )?;
        self.ask(
            "GET",
            &format!("{all}&resourceVersion=nonsense"),
            "",
            &Value::Null,
        )?;
        Ok(())
    }

    fn watches(&mut self, listed: &str, forget: &dyn Fn()) -> Result<()> {
        let of =
            format!("{PODS}?watch=true&timeoutSeconds=1&fieldSelector=spec.nodeName%3D{NOWHERE}");
        let watch = |more: &str| format!("{of}{more}");
        self.ask(
            "GET",
            &watch(&format!("&resourceVersion={listed}")),
            "",
            &Value::Null,
        )?;
        self.ask("GET", &watch("&resourceVersion=0"), "", &Value::Null)?;
        forget();
        self.ask("GET", &watch("&resourceVersion=1"), "", &Value::Null)?;
        self.ask("GET", &watch("&resourceVersion=nonsense"), "", &Value::Null)?;
        let now = version(&self.ask("GET", PODS, "", &Value::Null)?)?;
        self.ask(
            "GET",
            &watch(&format!("&resourceVersion={now}")),
            "",
            &Value::Null,
        )?;
        Ok(())
    }

    fn ends(&mut self) -> Result<()> {
        let now = version(&self.ask("GET", PODS, "", &Value::Null)?)?;
        let eviction = |name: &str, uid: Option<&str>| {
            let preconditions = uid.map(|uid| json!({"preconditions": {"uid": uid}}));
            json!({
                "apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": {"name": name, "namespace": "default"},
                "deleteOptions": preconditions,
            })
        };
        let other = Some("00000000-0000-0000-0000-000000000000");
        let evict = |name: &str| format!("{PODS}/{name}/eviction");
        self.ask("POST", &evict("b"), JSON, &eviction("b", other))?;
        self.ask("POST", &evict("z"), JSON, &eviction("z", None))?;
        for name in ["a", "b", "c"] {
            let path = format!("{PODS}/{name}?gracePeriodSeconds=0");
            self.ask("DELETE", &path, "", &Value::Null)?;
        }
        self.ask("DELETE", &format!("{PODS}/a"), "", &Value::Null)?;
        let watch = format!("{PODS}?watch=true&timeoutSeconds=1&resourceVersion={now}");
        self.ask("GET", &watch, "", &Value::Null)?;
        Ok(())
    }
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": NOWHERE,
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "registry.invalid/none:1"}],
        },
    })
}

fn version(said: &[Value]) -> Result<String> {
    let version = said.first().context("no answer")?["metadata"]["resourceVersion"].as_str();
    version.map(str::to_owned).context("it has no version")
}

fn without_versions(path: &str) -> String {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let query = query.split('&').map(|pair| match pair.split_once('=') {
        Some((key @ ("continue" | "resourceVersion"), value))
            if value.len() > 1 && value != "nonsense" =>
        {
            format!("{key}=...")
        }
        _ => pair.to_owned(),
    });
    format!("{path} {}", query.collect::<Vec<_>>().join("&"))
}

/// What a node agent reads of an object, a list, an event of a watch or a refusal.
fn counts(said: &Value) -> Value {
    if let (Some(kind), object) = (said["type"].as_str(), &said["object"])
        && object.is_object()
    {
        return json!({"event": kind, "object": counts(object)});
    }
    if said["kind"] == "Status" {
        return json!({"status": said["status"], "code": said["code"], "reason": said["reason"]});
    }
    let metadata = &said["metadata"];
    let has = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    if let Some(items) = said["items"].as_array() {
        let items: Vec<_> = items.iter().map(counts).collect();
        return json!({
            "kind": said["kind"],
            "version": has(&metadata["resourceVersion"]),
            "continue": has(&metadata["continue"]),
            "remaining": metadata["remainingItemCount"],
            "items": items,
        });
    }
    let conditions = said["status"]["conditions"].as_array();
    // Their order does not count.
    let conditions: BTreeSet<_> = conditions
        .into_iter()
        .flatten()
        .filter_map(|one| one["type"].as_str())
        .collect();
    json!({
        "kind": said["kind"],
        "name": metadata["name"],
        "uid": has(&metadata["uid"]),
        "version": has(&metadata["resourceVersion"]),
        "labels": metadata["labels"],
        "annotations": metadata["annotations"],
        "deleting": has(&metadata["deletionTimestamp"]),
        "node": said["spec"]["nodeName"],
        "phase": said["status"]["phase"],
        "reason": said["status"]["reason"],
        "message": said["status"]["message"],
        "conditions": conditions,
    })
}
