//! Pods come, change and go.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use axum::http::StatusCode;
use podwarden_policy::{Pod, QosClass};
use serde_json::{Value, json};

use super::{History, MOST, Object};
use crate::harness::{NODE, defaulted, fresh_uid, manifest};

impl History<'_> {
    pub(super) fn object_changes(&mut self) -> Result<()> {
        let names: Vec<String> = self.objects.keys().cloned().collect();
        let name = self.rng().choice(&names).cloned();
        let dice = self.dice();
        let Some(name) = name.filter(|_| dice >= 22 || names.len() >= MOST) else {
            return self.create();
        };
        let alive = self.objects[&name].alive;
        match dice {
            0..42 => self.resize(&name),
            42..56 => {
                let id = format!("containerd://{:064x}", self.rng().u128(..));
                self.change(&name, |pod| {
                    if alive {
                        pod["status"]["phase"] = "Running".into();
                    }
                    pod["status"]["containerStatuses"] =
                        json!([{"name": "main-0", "containerID": id}]);
                })
            }
            56..62 => {
                let phase = ["Succeeded", "Failed"][self.rng().usize(..2)];
                if let Some(object) = self.objects.get_mut(&name) {
                    object.alive = false;
                }
                self.change(&name, |pod| pod["status"]["phase"] = phase.into())
            }
            62..66 => self.change(&name, |pod| {
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }),
            66..70 => {
                self.remove(&name)?;
                let uid = fresh_uid();
                let class = self.class();
                let mut pod = self.random.pod(class)?;
                (pod.name, pod.uid) = (name, uid.into());
                self.put(pod)
            }
            70..73 => {
                self.spoilt.push(name.clone());
                self.change(&name, |pod| {
                    pod["spec"]["containers"][0]["resources"]["limits"]["memory"] =
                        "64 megabytes".into();
                })
            }
            73..76 => self.repair(),
            76..80 => self.mirror(),
            _ => self.remove(&name),
        }
    }

    fn class(&mut self) -> QosClass {
        QosClass::ALL[self.rng().usize(..QosClass::ALL.len())]
    }

    fn create(&mut self) -> Result<()> {
        let class = self.class();
        let pod = self.random.pod(class)?;
        self.put(pod)
    }

    fn put(&mut self, pod: Pod) -> Result<()> {
        // As the API server completes what it is given.
        self.server().create_pod(NODE, manifest(&defaulted(&pod)))?;
        let object = Object { pod, alive: true };
        self.objects.insert(object.pod.name.clone(), object);
        Ok(())
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Value)) -> Result<()> {
        let namespace = &self.objects[name].pod.namespace;
        self.server().change_pod(namespace, name, change).map(drop)
    }

    fn resize(&mut self, name: &str) -> Result<()> {
        let pod = self.random.resized(&self.objects[name].pod)?;
        let spec = manifest(&defaulted(&pod))["spec"].take();
        self.change(name, |object| {
            object["spec"] = spec;
            object["spec"]["nodeName"] = NODE.into();
        })?;
        self.spoilt.retain(|other| other != name);
        if let Some(object) = self.objects.get_mut(name) {
            object.pod = pod;
        }
        Ok(())
    }

    pub(super) fn repair(&mut self) -> Result<()> {
        match self.spoilt.last().cloned() {
            Some(name) => self.resize(&name),
            None => Ok(()),
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<()> {
        self.spoilt.retain(|other| other != name);
        let object = self.objects.remove(name).context("no such pod")?;
        let namespace = &object.pod.namespace;
        self.server().remove_pod(namespace, name).map(drop)
    }

    /// A static pod gets a mirror, as a kubelet makes one, or loses it.
    fn mirror(&mut self) -> Result<()> {
        let uids: Vec<String> = self.files.keys().cloned().collect();
        let Some(uid) = self.rng().choice(&uids).cloned() else {
            return Ok(());
        };
        if let Some(name) = self.mirrors.remove(&uid) {
            return self.server().remove_pod("e2e", &name).map(drop);
        }
        let mut object = manifest(&defaulted(&self.files[&uid]));
        let name = format!("{}-{NODE}", self.files[&uid].name);
        object["metadata"] = json!({
            "name": name, "namespace": "e2e", "uid": fresh_uid(),
            "annotations": {
                "kubernetes.io/config.mirror": uid,
                "kubernetes.io/config.source": "file",
            },
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node", "controller": true,
            }],
        });
        self.server().create_pod(NODE, object)?;
        self.mirrors.insert(uid, name);
        Ok(())
    }

    /// A new static pod, or another one of `pods`, or one less: its uid, and what it is now.
    fn static_pod(&mut self, pods: &BTreeMap<String, Pod>) -> Result<(String, Option<Pod>)> {
        let uids: Vec<String> = pods.keys().cloned().collect();
        let uid = self.rng().choice(&uids).cloned();
        let dice = self.dice();
        match uid.filter(|_| dice >= 40 || uids.len() >= MOST) {
            None => {
                let class = self.class();
                let pod = self.random.pod(class)?;
                Ok((pod.uid.to_string(), Some(pod)))
            }
            Some(uid) if dice < 70 => {
                let pod = self.random.resized(&pods[&uid])?;
                Ok((uid, Some(pod)))
            }
            Some(uid) => Ok((uid, None)),
        }
    }

    pub(super) fn file_changes(&mut self) -> Result<()> {
        let files = std::mem::take(&mut self.files);
        let changed = self.static_pod(&files);
        self.files = files;
        let (uid, pod) = changed?;
        let path = self.file_of(&uid);
        let Some(pod) = pod else {
            self.files.remove(&uid);
            // Its mirror goes first: for a moment it would be all that is known of the pod.
            if let Some(name) = self.mirrors.remove(&uid) {
                self.server().remove_pod("e2e", &name)?;
            }
            return fs::remove_file(&path).context("remove a manifest");
        };
        // An editor's file beside it, and the manifest put in its place.
        let draft = path.with_extension("json~");
        fs::write(&draft, manifest(&pod).to_string()).context("write a manifest")?;
        fs::rename(&draft, &path).context("put a manifest in place")?;
        self.files.insert(uid, pod);
        Ok(())
    }

    pub(super) fn file_of(&self, uid: &str) -> PathBuf {
        let dir = self.node().sandbox.pods_dir();
        dir.join(format!("{uid}.json"))
    }

    pub(super) fn page_changes(&mut self) -> Result<()> {
        let page = std::mem::take(&mut self.page);
        let changed = self.static_pod(&page);
        self.page = page;
        match changed? {
            (uid, Some(pod)) => drop(self.page.insert(uid, pod)),
            (uid, None) => drop(self.page.remove(&uid)),
        }
        // Sometimes it is down with the change, and up with the next.
        match self.dice() {
            0..80 => self.show_page(),
            _ => self.web.serve(StatusCode::BAD_GATEWAY, &""),
        }
        Ok(())
    }

    pub(super) fn show_page(&self) {
        let items: Vec<_> = self.page.values().map(manifest).collect();
        let list = json!({"apiVersion": "v1", "kind": "PodList", "items": items});
        self.web.serve(StatusCode::OK, &list);
    }
}
