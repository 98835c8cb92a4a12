//! A real Kubernetes of the cases' own: etcd, the control plane, a kubelet and containerd, in namespaces that
//! end with it. One serves all cases of a run. In a test machine that is for it, the machine is the node.
//!
//! | module | purpose |
//! |---|---|
//! | `programs` | where the programs are |
//! | `enclosure` | the namespaces, and how a program gets into them |
//! | `pki` | certificates, tokens, kubeconfigs |
//! | `daemons` | command lines and configurations |
//! | `driver` | the names of cgroups |
//! | `image` | the agent's image |
//! | `client` | the API server |
//! | `agent` | the shipped DaemonSet, and the agent's own API |
//! | `pod` | pods for the cases |
//! | `shared` | the one of a run |
//! | `machine` | what of the machine has to stay as it is |

mod agent;
mod client;
mod daemons;
mod driver;
mod enclosure;
mod image;
mod machine;
mod pki;
mod pod;
pub(crate) mod programs;
mod shared;

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

pub(crate) use self::client::{Client, PODS};
use self::daemons::Daemon;
pub(crate) use self::daemons::restricts_oom_score;
pub(crate) use self::driver::Driver;
use self::enclosure::Enclosure;
use self::machine::Machine;
use self::pki::Pki;
pub(crate) use self::pod::Pod;
use self::programs::Programs;
pub(crate) use self::shared::Shared;
use crate::cases::{Context, skip};
use crate::containerd::{build_busybox, find, missing, plugins};
use crate::harness::{Cgroup, eventually};
use crate::machine::init::is_guest;

/// What the node is called.
pub(crate) const NODE: &str = "node1";
/// The node's address, of those for benchmarks (RFC 2544).
const ADDRESS: &str = "198.18.1.1";
/// That of the service `kubernetes`, by which pods find the API server.
const SERVICE: &str = "10.96.0.1";
/// How long one request may take.
pub(crate) const REQUEST: Duration = Duration::from_secs(20);
/// How long the control plane and the node may take to be ready.
const START: Duration = Duration::from_secs(90);

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
    /// Of the kubelet.
    driver: Driver,
    /// How many times longer than on a real machine something may take here.
    slowdown: u32,
    /// The machine before it was started.
    machine: Machine,
    enclosure: Rc<Enclosure>,
}

impl Cluster {
    /// Starts one whose kubelet has this driver; the case is skipped where none can run.
    pub(crate) fn start(context: &Context, driver: Driver) -> Result<Self> {
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
            context,
            driver,
        );
        if this.is_err() && is_guest() {
            daemons::print_ends(enclosure.dir());
        }
        let this = this.with_context(|| daemons::last_words(enclosure.dir()))?;
        context.figure("cluster_ready", since.elapsed().as_secs_f64(), "s");
        Ok(this)
    }

    fn start_in(
        enclosure: Rc<Enclosure>,
        machine: Machine,
        programs: Programs,
        plugins: &Path,
        context: &Context,
        driver: Driver,
    ) -> Result<Self> {
        let slowdown = context.slowdown();
        let start = START * slowdown;
        let dir = enclosure.dir().to_owned();
        fs::create_dir(dir.join("go")).context("create the directory of signals")?;
        let pki = Pki::new(&dir.join("pki"))?;
        let mut etcd = daemons::etcd(&enclosure)?;
        let mut apiserver = daemons::apiserver(programs.path("kube-apiserver"), &pki);
        let mut containerd = daemons::containerd(&enclosure, plugins, driver)?;
        for daemon in [&mut etcd, &mut apiserver, &mut containerd] {
            daemon.start(&enclosure)?;
        }
        let controllers = programs.path("kube-controller-manager");
        let mut controllers = daemons::controller_manager(controllers, &enclosure, &pki);
        let mut scheduler = daemons::scheduler(programs.path("kube-scheduler"), &pki);
        let mut kubelet = daemons::kubelet(programs.path("kubelet"), &enclosure, &pki, driver)?;
        let busybox = build_busybox(&dir.join("busybox"))?;
        daemons::import(&enclosure, &busybox, start)?;
        // What is shipped is not in a test machine.
        if !is_guest() {
            let agent = image::build(&dir.join("agent"), context.agent())?;
            daemons::import(&enclosure, &agent, start)?;
        }
        let request = REQUEST * slowdown;
        let api = Client::new(&pki.file("admin.conf"), enclosure.network()?, request)?;
        eventually(start, || {
            api.get("/api/v1/namespaces/kube-system")?;
            // The controller manager ends where it waits for this longer than 10 s.
            let (code, said) = api.answer("GET", "/healthz", "", &Value::Null)?;
            ensure!(code == 200, "it is not healthy: {said:?}");
            Ok(())
        })
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
            driver,
            slowdown,
            machine,
            enclosure,
        };
        this.wait_ready()?;
        Ok(this)
    }

    fn wait_ready(&self) -> Result<()> {
        eventually(self.limit(START), || {
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

    /// How long to wait for what takes `usual` at the very most on a real machine.
    pub(crate) fn limit(&self, usual: Duration) -> Duration {
        usual * self.slowdown
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
        let network = self.enclosure.network()?;
        Client::new(&file.display().to_string(), network, self.limit(REQUEST))
    }

    /// Kills the API server.
    pub(crate) fn kill_apiserver(&self) {
        self.apiserver.borrow_mut().kill();
    }

    /// Starts it again and waits until it answers.
    pub(crate) fn start_apiserver(&self) -> Result<()> {
        self.apiserver.borrow_mut().start(&self.enclosure)?;
        let answer = eventually(self.limit(START), || {
            self.api.get("/api/v1/namespaces/kube-system")
        });
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
        eventually(self.limit(START), || {
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

    /// Prints the end of what its daemons wrote.
    pub(crate) fn print_logs(&self) {
        daemons::print_ends(self.dir());
    }

    /// The node's `kubepods`.
    pub(crate) fn kubepods(&self) -> Cgroup {
        self.enclosure.root().child(self.driver.kubepods())
    }

    /// A tier's cgroup.
    pub(crate) fn tier(&self, name: &str) -> Cgroup {
        self.kubepods().child(&self.driver.tier(name))
    }

    /// The cgroup at a path below the node's root.
    pub(crate) fn cgroup(&self, path: &str) -> Cgroup {
        self.enclosure.root().child(path.trim_start_matches('/'))
    }

    /// The names of its cgroups.
    pub(crate) fn driver(&self) -> Driver {
        self.driver
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
