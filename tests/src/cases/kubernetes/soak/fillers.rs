//! Pods that fill memory, one at a time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::watch::Watch;
use crate::cases::Context;
use crate::cases::kubernetes::LIMIT;
use crate::cases::kubernetes::cut_off::{SHORT, Victim, ended};
use crate::cases::kubernetes::eviction::{BACK, LIVED, Lives, WATCHED};
use crate::harness::{eventually, sleep};
use crate::kubernetes::{Cluster, PODS, Pod};

/// One of so many steps makes one, where there is none.
const SELDOM: u32 = 30;
/// Steps that it waits for before it fills, at most: the server may go meanwhile.
const PATIENCE: u32 = 40;
/// In which time it starts: a kubelet may be away, and have much to do.
const STARTS: Duration = Duration::from_secs(180);

/// See the module.
pub(super) struct Fillers<'a> {
    cluster: &'a Cluster,
    current: Option<Filler>,
    evicted: Vec<Victim>,
    uids: Vec<String>,
    restarted: usize,
    lived_longer: usize,
    lived_longest: Duration,
}

struct Filler {
    name: String,
    uid: String,
    since: Instant,
    stage: Stage,
}

enum Stage {
    Starts,
    Waits(u32, Lives),
    Fills(Lives),
}

impl<'a> Fillers<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            current: None,
            evicted: Vec::new(),
            uids: Vec::new(),
            restarted: 0,
            lived_longer: 0,
            lived_longest: Duration::ZERO,
        }
    }

    /// Whether one is under way.
    pub(super) fn is_filling(&self) -> bool {
        self.current.is_some()
    }

    /// Those that were made.
    pub(super) fn uids(&self) -> &[String] {
        &self.uids
    }

    pub(super) fn step(
        &mut self,
        random: &mut fastrand::Rng,
        server: bool,
        watch: &Watch<'_>,
    ) -> Result<()> {
        let Some(filler) = self.current.take() else {
            if server && random.u32(0..SELDOM) == 0 {
                self.make()?;
            }
            return Ok(());
        };
        let Filler {
            name,
            uid,
            since,
            stage,
        } = filler;
        let stage = match stage {
            Stage::Starts if server && self.runs(&name, &uid).is_ok() => {
                let pod = self.cluster.kubepods().child("besteffort");
                let lives = Lives::watch(pod.child(&format!("pod{uid}")));
                Stage::Waits(random.u32(..PATIENCE), lives)
            }
            Stage::Starts => {
                ensure!(since.elapsed() < STARTS, "{name} does not start");
                Stage::Starts
            }
            Stage::Waits(0, lives) => {
                self.cluster.go(&name)?;
                let stage = Stage::Fills(lives);
                self.current = Some(Filler {
                    name,
                    uid,
                    since: Instant::now(),
                    stage,
                });
                return Ok(());
            }
            Stage::Waits(left, lives) => Stage::Waits(left - 1, lives),
            Stage::Fills(lives) if watch.evictions(&uid) > 0 => {
                self.evicted.push(Victim { name, uid, lives });
                return Ok(());
            }
            Stage::Fills(lives) => {
                ensure!(since.elapsed() < LIMIT, "{name} is not evicted");
                Stage::Fills(lives)
            }
        };
        self.current = Some(Filler {
            name,
            uid,
            since,
            stage,
        });
        Ok(())
    }

    fn make(&mut self) -> Result<()> {
        let name = format!("soak-filler-{}", self.uids.len());
        let uid = eventually(LIMIT, || self.cluster.run(&Pod::filler(&name, 1200, 500)))?;
        self.uids.push(uid.clone());
        self.current = Some(Filler {
            name,
            uid,
            since: Instant::now(),
            stage: Stage::Starts,
        });
        Ok(())
    }

    fn runs(&self, name: &str, uid: &str) -> Result<()> {
        let status = self.cluster.pod(name)?["status"].take();
        let running = &status["containerStatuses"][0]["state"]["running"];
        ensure!(running.is_object(), "{name}: {status}");
        self.cluster.pod_stats(uid).map(drop)
    }

    /// Those that were evicted are marked, once, and stay so; then they are removed.
    pub(super) fn end(&mut self) -> Result<()> {
        let cluster = self.cluster;
        let all = || self.evicted.iter().try_for_each(|one| ended(cluster, one));
        eventually(BACK, all)?;
        sleep(WATCHED)?;
        all().context("the mark did not stay")?;
        for victim in std::mem::take(&mut self.evicted) {
            let Victim { name, uid, lives } = victim;
            let lives = lives.stop();
            let longest = lives.values().max().copied().unwrap_or_default();
            ensure!(longest < LIVED, "{name}: a container lived on: {lives:?}");
            self.restarted += lives.len();
            self.lived_longer += lives.values().filter(|lived| **lived > SHORT).count();
            self.lived_longest = self.lived_longest.max(longest);
            let path = "/api/v1/namespaces/default/events?fieldSelector=";
            let path = format!("{path}involvedObject.uid={uid},reason=Evicted");
            eventually(LIMIT, || {
                let events = cluster.api.list(&path)?;
                let counts = events.iter().map(|event| event["count"].as_u64());
                let times: u64 = counts.map(|count| count.unwrap_or(1)).sum();
                ensure!(times == 1, "{name}: {times} Events tell of its eviction");
                Ok(())
            })?;
            cluster.api.delete(&format!("{PODS}/{name}"))?;
            cluster.stay(&name)?;
        }
        Ok(())
    }

    pub(super) fn tell(&self, context: &Context) {
        context.figure("evictions", self.uids.len() as f64, "");
        context.figure("started_again", self.restarted as f64, "");
        context.figure("lived_longer_than_100_ms", self.lived_longer as f64, "");
        let longest = self.lived_longest.as_secs_f64() * 1000.0;
        context.figure("lived_longest", longest, "ms");
    }
}
