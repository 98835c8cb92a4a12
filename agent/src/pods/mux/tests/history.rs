//! Any history, with the workers that follow it, ends as its last lists do.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::*;
use crate::eviction::pod_workers::{JobError, Work, WorkQueue};

/// PodWorkers at a time.
const MOST: usize = 4;

/// A source as it really is, and the events of it that the mux has not been told yet.
struct World {
    source: Source,
    pods: BTreeMap<String, SourcedPod>,
    errors: BTreeMap<String, SourceError>,
    log: VecDeque<PodEvent>,
    /// Events were lost: only a list helps.
    behind: bool,
}

impl World {
    fn new(source: Source) -> Self {
        Self {
            source,
            pods: BTreeMap::new(),
            errors: BTreeMap::new(),
            log: VecDeque::new(),
            // A source begins with a list.
            behind: true,
        }
    }

    /// Something happens to pod `at`.
    fn happen(&mut self, step: &Step) {
        let at = step.pod;
        let uid = format!("{}-{at}", self.source);
        let fresh = match (self.source, at % 4) {
            (Source::File | Source::Http, 0) => manifest(&uid, &format!("static-{at}")),
            (Source::File | Source::Http, 1) => {
                manifest(&format!("shared-{at}"), &format!("shared-{at}"))
            }
            (Source::File | Source::Http, _) => manifest(&uid, &uid),
            (Source::Apiserver, 0) => {
                mirror(&uid, &format!("hash-{at}"), &format!("static-{at}-{NODE}"))
            }
            (Source::Apiserver, 1) => object(&format!("shared-{at}"), &format!("shared-{at}")),
            (Source::Apiserver, _) => object(&uid, &uid),
            (Source::Kubelet, 0) => {
                of_kubelet(&format!("hash-{at}"), &format!("static-{at}-{NODE}"), true)
            }
            (Source::Kubelet, 1) => {
                of_kubelet(&format!("shared-{at}"), &format!("shared-{at}"), false)
            }
            (Source::Kubelet, _) => of_kubelet(&uid, &uid, false),
        };
        let key = fresh.key().to_owned();
        let mut pod = self.pods.get(&key).cloned().unwrap_or(fresh);
        match step.what {
            0 | 1 => {}
            2 => pod.pod.priority += 1,
            3 => {
                let phases = [Phase::Pending, Phase::Running, Phase::Failed];
                pod.phase = Some(phases[usize::from(step.much % 3)]);
            }
            4 => pod.deleting = true,
            5 if self.source == Source::Apiserver => {
                let error = broken(&key);
                self.errors.insert(key, error.clone());
                self.log.push_back(PodEvent::Unusable(Box::new(error)));
                return;
            }
            _ => {
                self.pods.remove(&key);
                self.errors.remove(&key);
                self.log.push_back(PodEvent::Delete(key));
                return;
            }
        }
        self.errors.remove(&key);
        self.pods.insert(key, pod.clone());
        self.log.push_back(PodEvent::Apply(Box::new(pod)));
    }

    fn list(&self) -> PodEvent {
        let usable = self
            .pods
            .iter()
            .filter(|(key, _)| !self.errors.contains_key(*key));
        PodEvent::Replace {
            pods: usable.map(|(_, pod)| pod.clone()).collect(),
            errors: self.errors.values().cloned().collect(),
        }
    }

    /// Tells the mux some of what it does not know, or is cut, or lists.
    fn speak(&mut self, step: &Step) -> Vec<PodEvent> {
        if self.behind || step.talk == 0 {
            self.behind = false;
            self.log.clear();
            return vec![self.list()];
        }
        if step.talk == 1 {
            // Cut off, and its history is compacted before it is back.
            self.log.clear();
            self.behind = true;
            return Vec::new();
        }
        let some = usize::from(step.much).min(self.log.len());
        let told: Vec<_> = self.log.drain(..some).collect();
        if step.talk == 2 {
            // Cut off, and resumed from before what was told last: it is told again.
            return [told.clone(), told].concat();
        }
        told
    }
}

#[derive(Debug, Clone)]
struct Step {
    source: u8,
    pod: u8,
    what: u8,
    talk: u8,
    much: u8,
    work: u8,
    /// The agent is killed, and the next one started.
    restart: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let world = (0..4_u8, 0..24_u8, 0..8_u8, 0..40_u8, 0..6_u8);
    let agent = (0..12_u8, prop::bool::weighted(0.004));
    (world, agent).prop_map(|((source, pod, what, talk, much), (work, restart))| Step {
        source,
        pod,
        what,
        talk,
        much,
        work,
        restart,
    })
}

/// A listener that knows of a source only what updates tell it.
#[derive(Default, PartialEq, Debug)]
struct Listener(BTreeMap<(Source, String), SourcedPod>);

impl Listener {
    fn take(&mut self, update: Update) {
        let key = (update.source, update.pod.key().to_owned());
        let before = self.0.get(&key);
        match update.op {
            Op::Add => assert_eq!(before, None, "added twice"),
            Op::Remove => assert_eq!(before, Some(&update.pod), "removed as it never was"),
            _ => assert_ne!(before, Some(&update.pod), "told without a change"),
        }
        if update.op == Op::Remove {
            self.0.remove(&key);
        } else {
            assert!(
                update.op == Op::Add || before.is_some(),
                "{:?} of an unknown pod",
                update.op
            );
            self.0.insert(key, update.pod);
        }
    }
}

/// What was done for pods, by [`key_of`]. It outlives the agent.
type Done = BTreeMap<String, SourcedPod>;

fn key_of(source: Source, pod: &SourcedPod) -> String {
    format!("{source}/{}", pod.key())
}

/// The mux, who listens to it, and the workers that do what it says.
struct Agent {
    mux: Mux,
    listener: Listener,
    workers: WorkQueue<SourcedPod>,
    running: Vec<(String, Work<SourcedPod>)>,
    /// Pods that had work.
    known: BTreeSet<String>,
    /// Pods without a source are cleaned up.
    tidy: bool,
    now: Instant,
}

impl Agent {
    fn new(now: Instant) -> Self {
        Self {
            mux: Mux::new(NODE, ALL),
            listener: Listener::default(),
            workers: WorkQueue::new(MOST),
            running: Vec::new(),
            known: BTreeSet::new(),
            tidy: false,
            now,
        }
    }

    /// After another one, of which there is a checkpoint, and what was done.
    fn after(now: Instant, checkpoint: &[SourcedPod], done: &Done) -> Self {
        let mut agent = Self::new(now);
        let mut recalled = checkpoint.to_vec();
        recalled.retain(|pod| done.contains_key(&key_of(Source::Apiserver, pod)));
        for pod in &recalled {
            let key = (Source::Apiserver, pod.key().to_owned());
            agent.listener.0.insert(key, pod.clone());
            let key = key_of(Source::Apiserver, pod);
            agent.offer(key, Work::Update(pod.clone()));
        }
        agent.mux.recall(Source::Apiserver, recalled);
        agent.known.extend(done.keys().cloned());
        agent
    }

    fn offer(&mut self, key: String, work: Work<SourcedPod>) {
        self.workers.offer(&key, work, self.now);
        self.known.insert(key);
    }

    fn take(&mut self, source: Source, event: PodEvent) {
        for update in self.mux.apply(source, event) {
            self.listener.take(update.clone());
            let (key, pod) = (key_of(source, &update.pod), update.pod);
            match update.op {
                // Before every source has reported it may be that another one has it.
                Op::Remove if !self.tidy => {}
                Op::Remove => self.offer(key, Work::Delete(pod)),
                _ => self.offer(key, Work::Update(pod)),
            }
        }
        if !self.tidy && self.mux.waiting().next().is_none() {
            self.tidy = true;
            let states = self.mux.sources.iter();
            let told: BTreeSet<_> = states
                .flat_map(|(source, state)| state.pods.values().map(|p| key_of(*source, p)))
                .collect();
            for key in self.known.difference(&told).cloned().collect::<Vec<_>>() {
                self.offer(key, Work::Delete(object("gone", "gone")));
            }
        }
    }

    fn start(&mut self) {
        if let Some(work) = self.workers.start(self.now) {
            let twice = self.running.iter().any(|(key, _)| *key == work.0);
            assert!(!twice, "two at once");
            self.running.push(work);
        }
    }

    /// One of those that run ends.
    fn end(&mut self, which: usize, well: bool, done: &mut Done) {
        if self.running.is_empty() {
            return;
        }
        let (key, work) = self.running.swap_remove(which % self.running.len());
        let result = match (well, work) {
            (false, _) => Err(JobError::new("no")),
            (true, Work::Update(pod)) => {
                done.insert(key.clone(), pod);
                Ok(())
            }
            (true, Work::Delete(_)) => {
                done.remove(&key);
                Ok(())
            }
        };
        self.workers.finished(&key, result, self.now, 0.5);
    }

    fn work(&mut self, step: &Step, done: &mut Done) {
        match step.work {
            0..5 => self.start(),
            5..9 => self.end(step.much.into(), true, done),
            9 => self.end(step.much.into(), false, done),
            10 => self.workers.hurry(self.now, || 0.5),
            _ => self.now += Duration::from_secs(step.much.into()),
        }
    }

    /// Nothing fails any more.
    fn settle(&mut self, done: &mut Done) {
        for _ in 0..10_000 {
            self.end(0, true, done);
            self.start();
            match self.workers.due() {
                Some(due) => self.now = self.now.max(due),
                None if self.running.is_empty() => return,
                None => {}
            }
        }
        panic!("the workers do not come to rest");
    }
}

/// Sources that something happens to, and the agents that follow them one after the other.
struct History {
    worlds: [World; 4],
    agent: Agent,
    /// The API server's pods, as they were known at some time.
    checkpoint: Vec<SourcedPod>,
    done: Done,
}

impl History {
    fn take(&mut self, step: &Step) {
        if step.restart {
            // Of what was under way, some is done.
            self.agent
                .end(0, step.much.is_multiple_of(2), &mut self.done);
            self.agent = Agent::after(self.agent.now, &self.checkpoint, &self.done);
            for world in &mut self.worlds {
                world.behind = true;
            }
        }
        let world = &mut self.worlds[usize::from(step.source)];
        world.happen(step);
        for event in world.speak(step) {
            self.agent.take(world.source, event);
        }
        if step.talk >= 30 {
            let told = &self.agent.mux.sources[&Source::Apiserver].pods;
            self.checkpoint = told.values().cloned().collect();
        }
        self.agent.work(step, &mut self.done);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// 5,000 events of four sources, some lost and some told twice, with agents that are killed on the way and
    /// workers that fail, end as the last lists alone do. A pod that was broken before it was last listed may
    /// be known or not; here it is repaired first.
    #[test]
    fn any_history_ends_as_its_last_lists_do(steps in prop::collection::vec(step(), 5000)) {
        let now = Instant::now();
        let mut history = History {
            worlds: ALL.map(World::new),
            agent: Agent::new(now),
            checkpoint: Vec::new(),
            done: Done::new(),
        };
        let mut whole = false;
        for step in &steps {
            history.take(step);
            // Once whole, it stays so, whatever is cut off.
            let waiting = history.agent.mux.waiting().count();
            prop_assert!(!whole || step.restart || waiting == 0);
            whole = waiting == 0;
        }
        let (mut agent, mut done) = (history.agent, history.done);
        let (mut fresh, mut fresh_done) = (Agent::new(now), Done::new());
        for world in &mut history.worlds {
            world.errors.clear();
            agent.take(world.source, world.list());
            fresh.take(world.source, world.list());
        }
        agent.settle(&mut done);
        fresh.settle(&mut fresh_done);
        prop_assert_eq!(&agent.mux, &fresh.mux);
        prop_assert_eq!(agent.mux.set(), fresh.mux.set());
        prop_assert_eq!(done, fresh_done);
        let mut told = Listener::default();
        for (source, state) in &agent.mux.sources {
            told.0.extend(state.pods.iter().map(|(key, pod)| ((*source, key.clone()), pod.clone())));
        }
        prop_assert_eq!(agent.listener, told);
        let set = agent.mux.set();
        let uids: BTreeSet<_> = set.pods.iter().chain(&set.ended).map(|p| &p.pod.uid).collect();
        prop_assert_eq!(uids.len(), set.pods.len() + set.ended.len());
    }
}
