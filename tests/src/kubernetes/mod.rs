//! A real Kubernetes of the cases' own: etcd, the control plane, a kubelet and containerd, in namespaces that
//! end with it. One serves all cases of a run.
//!
//! | module | purpose |
//! |---|---|
//! | `programs` | where the programs are |
//! | `enclosure` | the namespaces, and how a program gets into them |
//! | `pki` | certificates, tokens, kubeconfigs |
//! | `daemons` | command lines and configurations |
//! | `image` | the agent's image |
//! | `client` | the API server |
//! | `agent` | the shipped DaemonSet, and the agent's own API |
//! | `pod` | pods for the cases |
//! | `machine` | what of the machine has to stay as it is |

mod agent;
mod client;
mod daemons;
mod enclosure;
mod image;
mod machine;
mod pki;
mod pod;
mod programs;

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

pub(crate) use self::client::{Client, PODS};
use self::daemons::{CONTAINERD, Daemon};
use self::enclosure::Enclosure;
use self::machine::Machine;
use self::pki::Pki;
pub(crate) use self::pod::Pod;
use self::programs::Programs;
use crate::cases::{Context, Skip, skip};
use crate::containerd::{build_busybox, find, missing, plugins};
use crate::harness::{Cgroup, Shipped, eventually};

/// What the node is called.
pub(crate) const NODE: &str = "node1";
/// The node's address, of those for benchmarks (RFC 2544).
const ADDRESS: &str = "198.18.1.1";
/// That of the service `kubernetes`, by which pods find the API server.
const SERVICE: &str = "10.96.0.1";
/// How long the control plane and the node may take to be ready.
const START: Duration = Duration::from_secs(90);

/// The cluster of a run of the cases.
#[derive(Debug, Default)]
pub(crate) enum Shared {
    /// No case has asked for it yet.
    #[default]
    NotStarted,
    /// It runs.
    Running(Rc<Cluster>),
    /// It cannot run here, or did not start.
    Absent { reason: String, skipped: bool },
}

impl Shared {
    /// The cluster, started for the first case that asks; that case is skipped, and every further one, where
    /// none can run.
    pub(crate) fn get(&mut self, context: &Context) -> Result<Rc<Cluster>> {
        if matches!(self, Self::NotStarted) {
            *self = match Cluster::start(context) {
                Ok(cluster) => Self::Running(Rc::new(cluster)),
                Err(error) => Self::Absent {
                    skipped: error.is::<Skip>(),
                    reason: format!("{error:#}"),
                },
            };
        }
        match self {
            Self::Running(cluster) => Ok(Rc::clone(cluster)),
            Self::Absent {
                reason,
                skipped: true,
            } => {
                skip(reason.clone())?;
                bail!("it was skipped")
            }
            Self::Absent { reason, .. } => bail!("no Kubernetes: {reason}"),
            Self::NotStarted => bail!("no Kubernetes was started"),
        }
    }
}

/// See the module. Its parts go in this order.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// The API server, asked by its administrator.
    pub(crate) api: Client,
    apiserver: RefCell<Daemon>,
    kubelet: RefCell<Daemon>,
    others: Vec<Daemon>,
    programs: Programs,
    admin: String,
    /// The machine before it was started.
    machine: Machine,
    enclosure: Rc<Enclosure>,
}

impl Cluster {
    fn start(context: &Context) -> Result<Self> {
        if context.emulated() {
            skip("the test machine has no Kubernetes")?;
        }
        let since = Instant::now();
        let programs = Programs::find()?;
        let absent = ["etcd", "ip", "iptables", "ldd", "xz"].into_iter();
        if let Some(missing) =
            missing().or_else(|| absent.into_iter().find(|name| find(name).is_none()))
        {
            skip(format!("there is no {missing}: see `cargo xtask setup`"))?;
        }
        let Some(plugins) = plugins() else {
            skip("there are no network plugins: see `cargo xtask setup`")?;
            bail!("no network plugins")
        };
        let machine = Machine::now()?;
        let enclosure = Enclosure::new()?;
        let enclosure = Rc::new(enclosure);
        let this = Self::start_in(
            Rc::clone(&enclosure),
            machine,
            programs,
            &plugins,
            context.agent(),
        );
        let this = this.with_context(|| daemons::last_words(enclosure.dir()))?;
        context.figure("cluster_ready", since.elapsed().as_secs_f64(), "s");
        Ok(this)
    }

    fn start_in(
        enclosure: Rc<Enclosure>,
        machine: Machine,
        programs: Programs,
        plugins: &Path,
        agent: &Path,
    ) -> Result<Self> {
        let dir = enclosure.dir().to_owned();
        fs::create_dir(dir.join("go")).context("create the directory of signals")?;
        let pki = Pki::new(&dir.join("pki"))?;
        let mut etcd = daemons::etcd(&enclosure)?;
        let mut apiserver = daemons::apiserver(programs.path("kube-apiserver"), &pki);
        let mut containerd = daemons::containerd(&enclosure, plugins)?;
        for daemon in [&mut etcd, &mut apiserver, &mut containerd] {
            daemon.start(&enclosure)?;
        }
        let controllers = programs.path("kube-controller-manager");
        let mut controllers = daemons::controller_manager(controllers, &enclosure, &pki);
        let mut scheduler = daemons::scheduler(programs.path("kube-scheduler"), &pki);
        let mut kubelet = daemons::kubelet(programs.path("kubelet"), &enclosure, &pki)?;
        import(&enclosure, &build_busybox(&dir.join("busybox"))?)?;
        let shipped = Shipped::read()?;
        let pod = &shipped.object("DaemonSet")?["spec"]["template"]["spec"];
        let name = pod["containers"][0]["image"]
            .as_str()
            .context("it has no image")?;
        import(&enclosure, &image::build(&dir.join("agent"), name, agent)?)?;
        let api = Client::new(&pki.file("admin.conf"), enclosure.network()?)?;
        eventually(START, || api.get("/api/v1/namespaces/kube-system"))
            .context("the API server does not answer")?;
        for daemon in [&mut controllers, &mut scheduler, &mut kubelet] {
            daemon.start(&enclosure)?;
        }
        let this = Self {
            api,
            apiserver: RefCell::new(apiserver),
            kubelet: RefCell::new(kubelet),
            others: vec![controllers, scheduler, containerd, etcd],
            programs,
            admin: pki.file("admin.conf"),
            machine,
            enclosure,
        };
        this.wait_ready()?;
        Ok(this)
    }

    fn wait_ready(&self) -> Result<()> {
        eventually(START, || {
            let node = self.api.get(&format!("/api/v1/nodes/{NODE}"))?;
            let ready = condition(&node, "Ready").context("it has no condition Ready")?;
            ensure!(ready["status"] == "True", "{ready}");
            // Without it no pod is admitted.
            self.api
                .get("/api/v1/namespaces/default/serviceaccounts/default")
        })
        .context("the node does not become ready")?;
        Ok(())
    }

    /// The API server, asked with another token.
    pub(crate) fn api_as(&self, token: &str) -> Result<Client> {
        let text =
            fs::read_to_string(&self.admin).context("read the administrator's kubeconfig")?;
        let mut config: Value = serde_json::from_str(&text).context("it is no JSON")?;
        config["users"][0]["user"] = json!({"token": token});
        // A signed token is longer than a file's name may be.
        let file = self.enclosure.dir().join("another.conf");
        fs::write(&file, config.to_string()).context("write another kubeconfig")?;
        Client::new(&file.display().to_string(), self.enclosure.network()?)
    }

    /// Kills the API server.
    pub(crate) fn kill_apiserver(&self) {
        self.apiserver.borrow_mut().kill();
    }

    /// Starts it again and waits until it answers.
    pub(crate) fn start_apiserver(&self) -> Result<()> {
        self.apiserver.borrow_mut().start(&self.enclosure)?;
        let answer = eventually(START, || self.api.get("/api/v1/namespaces/kube-system"));
        answer.map(drop).context("the API server does not answer")
    }

    /// Kills the kubelet. Its pods run on.
    pub(crate) fn kill_kubelet(&self) {
        self.kubelet.borrow_mut().kill();
    }

    /// Starts it again.
    pub(crate) fn start_kubelet(&self) -> Result<()> {
        self.kubelet.borrow_mut().start(&self.enclosure)
    }

    /// `kubectl` as the administrator.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Result<()> {
        self.kubectl_warns(args).map(drop)
    }

    /// The same; the answer is what it says beside its output, the server's warnings among it.
    pub(crate) fn kubectl_warns(&self, args: &[&str]) -> Result<String> {
        let mut command = self.enclosure.command(&self.programs.path("kubectl"))?;
        let cache = self.enclosure.dir().join("kubectl");
        command
            .arg(format!("--kubeconfig={}", self.admin))
            .arg(format!("--cache-dir={}", cache.display()))
            .args(args);
        succeed(&mut command)
    }

    /// Makes a pod; the answer is its uid.
    pub(crate) fn run(&self, pod: &Pod) -> Result<String> {
        let manifest = self.manifest(pod)?;
        let made = self.api.create(PODS, &manifest)?;
        let uid = made["metadata"]["uid"].as_str();
        uid.map(str::to_owned).context("the pod has no uid")
    }

    /// The same, and waits until it runs.
    pub(crate) fn run_now(&self, pod: &Pod) -> Result<String> {
        let uid = self.run(pod)?;
        self.running(pod.name())?;
        Ok(uid)
    }

    /// Waits until a pod runs.
    pub(crate) fn running(&self, name: &str) -> Result<()> {
        eventually(START, || {
            let status = self.pod(name)?["status"].take();
            let running = &status["containerStatuses"][0]["state"]["running"];
            ensure!(
                status["phase"] == "Running" && running.is_object(),
                "{name}: {status}"
            );
            Ok(())
        })
    }

    /// A pod of the cases as the server has it.
    pub(crate) fn pod(&self, name: &str) -> Result<Value> {
        self.api.get(&format!("{PODS}/{name}"))
    }

    /// How often the kubelet has started a container of a pod, by its Events.
    pub(crate) fn starts(&self, uid: &str) -> Result<u64> {
        let of_it = format!("involvedObject.uid={uid},reason=Started");
        let path = "/api/v1/namespaces/default/events?fieldSelector=";
        let events = self.api.list(&format!("{path}{of_it}"))?;
        let counts = events
            .iter()
            .map(|event| event["count"].as_u64().unwrap_or(1));
        Ok(counts.sum())
    }

    /// Ends it, and looks that nothing is left of it and that the machine is as it was.
    pub(crate) fn stop(self) -> Result<()> {
        let (dir, root) = (
            self.enclosure.dir().to_owned(),
            self.enclosure.root().clone(),
        );
        let Self {
            machine,
            enclosure,
            apiserver,
            kubelet,
            others,
            ..
        } = self;
        drop((apiserver, kubelet, others));
        drop(enclosure);
        machine::ensure_gone(&dir, &root)?;
        let now = Machine::now()?;
        ensure!(now == machine, "the machine was {machine:?}, it is {now:?}");
        Ok(())
    }

    /// The node's `kubepods`.
    pub(crate) fn kubepods(&self) -> Cgroup {
        self.enclosure.root().child("kubepods")
    }

    /// All that is written for the cluster.
    pub(crate) fn dir(&self) -> &Path {
        self.enclosure.dir()
    }

    /// The kubelet's configuration.
    pub(crate) fn kubelet_config(&self) -> Result<Value> {
        let text = fs::read_to_string(self.dir().join("kubelet.yaml"));
        let text = text.context("read the kubelet's configuration")?;
        serde_json::from_str(&text).context("the kubelet's configuration is no JSON")
    }
}

/// A condition of an object's status.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == json!(kind))
}

/// An object's uid.
pub(crate) fn uid(object: &Value) -> Result<String> {
    let uid = object["metadata"]["uid"].as_str();
    uid.map(str::to_owned).context("it has no uid")
}

/// Imports an image, as soon as the runtime answers.
fn import(enclosure: &Enclosure, image: &Path) -> Result<()> {
    let socket = enclosure.path(CONTAINERD);
    eventually(START, || {
        ensure!(socket.exists(), "there is no {}", socket.display());
        succeed(&mut daemons::ctr(enclosure, &["version"])?)
    })
    .context("containerd does not answer")?;
    let image = image.display().to_string();
    succeed(&mut daemons::ctr(enclosure, &["images", "import", &image])?).map(drop)
}

/// What it says on standard error.
fn succeed(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.success(),
        "{}: {said}",
        command.get_program().display()
    );
    Ok(said)
}
