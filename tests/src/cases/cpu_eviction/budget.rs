//! PodDisruptionBudgets that keep best-effort pods from evictions that are not urgent.

use anyhow::{Result, ensure};
use podwarden::api::types::EventKind;

use super::{BY_REQUESTS, batch};
use crate::apiserver::Outage;
use crate::cases::Context;
use crate::cases::apiserver::{NAMESPACE, World};
use crate::harness::{Options, PodSpec, Workload, eventually};

/// Three batch pods request 18 GiB; two must go before the node has that to spare.
struct Scene {
    world: World,
    specs: Vec<PodSpec>,
    work: Vec<Workload>,
}

impl Scene {
    fn start(context: &Context, mode: &'static str) -> Result<Self> {
        let options = Options {
            mode,
            config: format!("evictionStatus: {{how: evictionApi}}\n{BY_REQUESTS}"),
            ..Options::default()
        };
        let mut world = World::with(context, options, |_| Ok(()))?;
        world.ready(context)?;
        let names = [("first", 5001), ("second", 5002), ("third", 5003)];
        let specs: Vec<_> = names.map(|(name, priority)| batch(name, priority)).into();
        for spec in &specs {
            let cgroup = world.add(spec)?;
            if mode == "observe" {
                cgroup.create_below(&world.node.sandbox.root)?;
            }
        }
        world.node.expect_pods(&specs.iter().collect::<Vec<_>>())?;
        let mut work = Vec::new();
        for spec in &specs {
            let cgroup = world.node.cgroup_of(spec);
            eventually(world.node.limit(), || {
                ensure!(cgroup.exists(), "{} is not there", cgroup.path());
                Ok(())
            })?;
            let main = cgroup.child("main");
            main.create()?;
            work.push(Workload::start(&main, &["anon", "--mib", "8"])?);
        }
        Ok(Self { world, specs, work })
    }

    fn keep(&self, names: &[&str]) {
        let kept = names.iter().map(|name| (*name).to_owned()).collect();
        self.world.server.manners(|m| m.kept = kept);
    }

    fn asked(&self) -> Vec<String> {
        let mut asked = Vec::new();
        self.world
            .server
            .manners(|m| asked = std::mem::take(&mut m.dry_runs));
        asked
    }

    /// Which of the pods run.
    fn alive(&mut self) -> Vec<bool> {
        self.work.iter_mut().map(Workload::is_alive).collect()
    }

    fn dies(&mut self, context: &Context, pod: usize) -> Result<()> {
        self.work[pod].wait(context.limit(60))?;
        Ok(())
    }

    /// What the agent says of why no pod may be evicted.
    fn says(&self, context: &Context, words: &str) -> Result<()> {
        eventually(context.limit(60), || {
            let events = self.world.node.agent.events(0)?;
            let said: Vec<_> = events
                .into_iter()
                .filter_map(|event| match event.kind {
                    EventKind::Degraded { message } => Some(message),
                    _ => None,
                })
                .collect();
            let times = said.iter().filter(|message| message.contains(words));
            ensure!(times.count() == 1, "{words:?} is not said once: {said:#?}");
            Ok(())
        })
    }

    fn finish(self) -> Result<()> {
        drop(self.work);
        self.world.node.empty()?;
        for spec in &self.specs {
            // It may have been deleted on the way.
            let _ = self.world.server.remove_pod(NAMESPACE, &spec.name);
        }
        self.world.node.expect_pods(&[])?;
        self.world.node.finish()
    }
}

/// A pod that its budget keeps is passed over for the next; none goes while budgets keep all of them, or while the API
/// server does not say; and one goes once its budget gives way.
pub(super) fn disruption_budgets_keep_best_effort(context: &Context) -> Result<()> {
    let mut scene = Scene::start(context, "enforce")?;
    scene.keep(&["first"]);
    // At the same time.
    let mut observed = Scene::start(context, "observe")?;

    scene.dies(context, 1)?;
    ensure!(scene.alive() == [true, false, true], "{:?}", scene.alive());
    let asked = scene.asked();
    ensure!(asked == ["first", "second"], "{asked:?} were asked for");
    // The Eviction follows.
    eventually(scene.world.node.limit(), || {
        let pod = scene.world.server.pod(NAMESPACE, "second")?;
        ensure!(pod["metadata"]["deletionTimestamp"].is_string(), "{pod}");
        Ok(())
    })?;

    scene.keep(&["first", "third"]);
    scene.says(
        context,
        "PodDisruptionBudgets refuse 2 (of the first: The disruption budget web",
    )?;
    let asked = scene.asked();
    ensure!(
        asked.starts_with(&["first".to_owned(), "third".to_owned()]),
        "{asked:?}"
    );

    scene.world.server.go_away(Outage::Refused)?;
    scene.keep(&[]);
    scene.says(
        context,
        "whether PodDisruptionBudgets allow it is not known",
    )?;
    ensure!(scene.alive() == [true, false, true], "{:?}", scene.alive());

    scene.keep(&["third"]);
    scene.world.server.come_back()?;
    scene.dies(context, 0)?;
    ensure!(scene.alive() == [false, false, true], "{:?}", scene.alive());

    // Where nothing is killed nothing is asked.
    let evictions = eventually(context.limit(60), || {
        let evictions = observed.world.node.agent.evictions()?;
        ensure!(!evictions.is_empty(), "the other agent reports none");
        Ok(evictions)
    })?;
    ensure!(
        evictions.iter().all(|eviction| eviction.dry_run),
        "{evictions:?}"
    );
    ensure!(observed.alive() == [true; 3], "a process was killed");
    let asked = observed.asked();
    ensure!(asked.is_empty(), "{asked:?} were asked for");
    scene.finish()?;
    drop(observed.work);
    observed.world.node.empty()
}
