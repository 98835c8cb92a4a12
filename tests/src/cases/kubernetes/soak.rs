//! An hour of churn on a node of a real Kubernetes: pods of all kinds come, change and go, the API server and the kubelet
//! are killed at random moments, and a pod fills memory now and then. `--repeat N` takes N minutes.
//!
//! | module | purpose |
//! |---|---|
//! | `churn` | what comes, changes and goes |
//! | `fillers` | pods that fill memory, and that they stay evicted |
//! | `outages` | the API server and the kubelet are away |
//! | `watch` | what the agent says meanwhile, and its accounts |

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use self::churn::Churn;
use self::fillers::Fillers;
use self::outages::Outages;
use self::watch::Watch;
use super::LIMIT;
use super::compare::{Comparison, until_same};
use super::enforcing;
use super::eviction::BACK;
use crate::cases::footprint::{Footprint, ensure_flat_memory};
use crate::cases::{Case, Context, slow};
use crate::harness::{eventually, sleep};
use crate::kubernetes::{Cluster, PODS};

mod churn;
mod fillers;
mod outages;
mod watch;

pub(in crate::cases) const CASES: &[Case] = &[slow("kubernetes_churn", kubernetes_churn)];

const MINUTES: u32 = 60;
/// Churn, and then calm, in which the files are compared: a kubelet computes its tiers anew once a minute.
const CHURN: Duration = Duration::from_secs(180);
/// Between two steps.
const STEP: Duration = Duration::from_millis(300);
/// How long the files may differ once nothing is made any more.
const SETTLED: Duration = Duration::from_secs(150);

/// No file of the kubelet's differs from what the agent beside it says, nothing is written, accounts are the kernel's, each
/// filler and no other pod is evicted once and never runs again, and the agent's memory does not grow.
fn kubernetes_churn(context: &Context) -> Result<()> {
    let seed = context.seed();
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(enforcing)?;
    let end = Instant::now() + Duration::from_secs(60) * context.repetitions(MINUTES);
    let mut soak = Soak::begin(&cluster, context.agent(), seed)?;
    let before = Footprint::of(soak.watch.agent())?;
    let mut prints = Vec::new();
    let mut soaked = Ok(());
    while soaked.is_ok() && Instant::now() < end {
        let round = soak.round(end);
        soaked = round.map(|print| prints.push(print));
    }
    let back = soak.outages.end(&cluster);
    let round = prints.len();
    soaked.with_context(|| format!("round {round}, seed {seed}"))?;
    back?;
    soak.tell(context);
    soak.churn.clear()?;
    cluster.clear()?;
    soak.watch.ensure_forgotten()?;
    // While pods run it has files of theirs open.
    eventually(LIMIT, || {
        Footprint::of(soak.watch.agent())?.ensure_closed(&before)
    })?;
    // In the first half it fills the list of evictions that it keeps the records of.
    ensure_flat_memory(context, "agent", &prints[prints.len() / 2..])
}

struct Soak<'a> {
    cluster: &'a Cluster,
    random: fastrand::Rng,
    churn: Churn<'a>,
    fillers: Fillers<'a>,
    outages: Outages,
    watch: Watch<'a>,
    program: &'a Path,
    values: usize,
    comparisons: usize,
}

impl<'a> Soak<'a> {
    fn begin(cluster: &'a Cluster, program: &'a Path, seed: u64) -> Result<Self> {
        Ok(Self {
            cluster,
            random: fastrand::Rng::with_seed(seed),
            churn: Churn::new(cluster, seed),
            fillers: Fillers::new(cluster),
            outages: Outages::default(),
            watch: Watch::begin(cluster)?,
            program,
            values: 0,
            comparisons: 0,
        })
    }

    /// Churn and calm; the answer is what the agent holds at its end.
    fn round(&mut self, end: Instant) -> Result<Footprint> {
        let until = end.min(Instant::now() + CHURN);
        while Instant::now() < until {
            self.outages.step(self.cluster, &mut self.random)?;
            let server = self.outages.has_server();
            if server {
                self.watch.look_at(&self.cluster.api.list(PODS)?)?;
            }
            self.watch.look()?;
            self.fillers.step(&mut self.random, server, &self.watch)?;
            self.churn.step(&mut self.random, server)?;
            sleep(STEP)?;
        }
        self.outages.end(self.cluster)?;
        self.calm()?;
        self.watch.ensure_victims(self.fillers.uids())?;
        Footprint::of(self.watch.agent())
    }

    fn calm(&mut self) -> Result<()> {
        let server = self.outages.has_server();
        while self.fillers.is_filling() {
            self.watch.look()?;
            self.fillers.step(&mut self.random, server, &self.watch)?;
            sleep(STEP)?;
        }
        self.fillers.end()?;
        self.watch.look_at(&self.cluster.api.list(PODS)?)?;
        self.watch.look()?;
        self.same_files()?;
        eventually(BACK, || self.watch.ensure_same_pods())?;
        self.watch.accounts()
    }

    /// Compares until nothing differs.
    fn same_files(&mut self) -> Result<()> {
        let compared = until_same(SETTLED, || {
            let own = Comparison::now(self.cluster, self.program)?;
            Ok([own, Comparison::as_told(self.cluster, self.program)?])
        })?;
        self.values += compared.iter().map(|one| one.values).sum::<usize>();
        self.comparisons += 1;
        Ok(())
    }

    fn tell(&self, context: &Context) {
        for (name, count) in self.churn.made() {
            context.figure(name, count as f64, "");
        }
        for (name, count) in [
            ("pods", self.watch.pods()),
            ("comparisons", self.comparisons),
            ("values", self.values),
            ("accounts_compared", self.watch.compared()),
            ("server_killed", self.outages.server_killed()),
            ("kubelet_killed", self.outages.kubelet_killed()),
        ] {
            context.figure(name, count as f64, "");
        }
        self.watch.tell(context);
        self.fillers.tell(context);
    }
}
