//! Evictions while the API server is away at random moments: each is marked in the end, none runs again, none is evicted
//! twice. `--repeat N` does N of them.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::eviction::{BACK, Lives, WATCHED, marked};
use super::{LIMIT, enforcing};
use crate::cases::{Case, Context, slow};
use crate::harness::{eventually, sleep};
use crate::kubernetes::{Cluster, Pod};

pub(in crate::cases) const CASES: &[Case] = &[slow("kubernetes_cut_off", kubernetes_cut_off)];

const EVICTIONS: u32 = 100;
/// Evicted one after another around one cut.
const AT_ONCE: u32 = 10;
/// The API server is away for less than this.
const LONGEST: u64 = 90_000;
/// So long after the first of them begins to fill, at most, it goes.
const WITHIN: u64 = 15_000;
/// What a container of an evicted pod may live. It is counted, not asserted: on a busy machine the one that watches is
/// late itself.
pub(super) const SHORT: Duration = Duration::from_millis(100);

pub(super) struct Victim {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) lives: Lives,
}

#[derive(Default)]
struct Counts {
    evictions: usize,
    started_again: usize,
    lived_longer: usize,
    lived_longest: Duration,
    away: u64,
}

fn kubernetes_cut_off(context: &Context) -> Result<()> {
    let seed = context.seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(enforcing)?;
    let mut counts = Counts::default();
    let mut left = context.repetitions(EVICTIONS);
    let mut evicted = Vec::new();
    for round in 0.. {
        let pods = left.min(AT_ONCE);
        if pods == 0 {
            break;
        }
        left -= pods;
        let of_round = play(&cluster, &mut random, round, pods, &mut counts);
        evicted.extend(of_round.with_context(|| format!("round {round}, seed {seed}"))?);
        each_once(&cluster, &evicted)?;
        cluster.clear()?;
    }
    counts.evictions = evicted.len();
    for (name, value) in [
        ("evictions", counts.evictions as f64),
        ("started_again", counts.started_again as f64),
        ("lived_longer_than_100_ms", counts.lived_longer as f64),
    ] {
        context.figure(name, value, "");
    }
    let longest = counts.lived_longest.as_secs_f64() * 1000.0;
    context.figure("lived_longest", longest, "ms");
    context.figure("server_away", counts.away as f64 / 1000.0, "s");
    Ok(())
}

/// One cut: the pods are evicted one after another, the server goes at some moment of that and is back at another.
fn play(
    cluster: &Cluster,
    random: &mut fastrand::Rng,
    round: u32,
    pods: u32,
    counts: &mut Counts,
) -> Result<Vec<String>> {
    let victims = (0..pods).map(|number| start(cluster, &format!("cut-{round}-{number}")));
    let victims: Vec<Victim> = victims.collect::<Result<_>>()?;
    for victim in &victims {
        cluster.running(&victim.name)?;
        eventually(LIMIT, || cluster.pod_stats(&victim.uid).map(drop))?;
    }
    let goes = Duration::from_millis(random.u64(0..WITHIN));
    let away = random.u64(0..LONGEST);
    counts.away += away;
    let pauses: Vec<_> = victims.iter().map(|_| random.u64(0..1500)).collect();
    let evicted = thread::scope(|scope| {
        let evicting = {
            let names: Vec<_> = victims
                .iter()
                .map(|v| (v.name.clone(), v.uid.clone()))
                .collect();
            let (go, socket) = (cluster.go_dir(), cluster.socket());
            scope.spawn(move || -> Result<()> {
                for ((name, uid), pause) in names.iter().zip(pauses) {
                    sleep(Duration::from_millis(pause))?;
                    std::fs::write(go.join(name), "").context("let the pod go on")?;
                    eventually(LIMIT, || {
                        let evictions = Cluster::evictions_at(&socket)?;
                        let its = evictions.iter().filter(|one| *one.pod.uid == **uid);
                        ensure!(its.count() > 0, "{name} is not evicted");
                        Ok(())
                    })?;
                }
                Ok(())
            })
        };
        let cut = sleep(goes).and_then(|()| {
            cluster.kill_apiserver();
            let slept = sleep(Duration::from_millis(away));
            cluster.start_apiserver()?;
            slept
        });
        let evicting = evicting.join();
        let evicted = evicting.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        cut.and(evicted)
    });
    evicted?;
    eventually(BACK, || {
        victims.iter().try_for_each(|one| ended(cluster, one))
    })?;
    sleep(WATCHED)?;
    let mut uids = Vec::new();
    for victim in victims {
        ended(cluster, &victim).context("the mark did not stay")?;
        let lives = victim.lives.stop();
        counts.started_again += lives.len();
        counts.lived_longer += lives.values().filter(|lived| **lived > SHORT).count();
        let longest = lives.values().max().copied().unwrap_or_default();
        counts.lived_longest = counts.lived_longest.max(longest);
        uids.push(victim.uid);
    }
    Ok(uids)
}

fn start(cluster: &Cluster, name: &str) -> Result<Victim> {
    let uid = cluster.run(&Pod::filler(name, 1200, 500))?;
    let pod = cluster
        .kubepods()
        .child("besteffort")
        .child(&format!("pod{uid}"));
    eventually(LIMIT, || {
        cluster.running(name)?;
        ensure!(pod.exists(), "it has no cgroup");
        Ok(())
    })?;
    Ok(Victim {
        name: name.to_owned(),
        uid,
        lives: Lives::watch(pod),
    })
}

/// As the kubelet marks one, and nothing of it is left on the node.
pub(super) fn ended(cluster: &Cluster, victim: &Victim) -> Result<()> {
    let pod = marked(cluster, &victim.name)?;
    ensure!(pod["metadata"]["uid"] == *victim.uid, "another: {pod}");
    let cgroup = cluster.kubepods().child("besteffort");
    let cgroup = cgroup.child(&format!("pod{}", victim.uid));
    ensure!(
        !cgroup.exists(),
        "{}: its kubelet has not ended it",
        victim.name
    );
    Ok(())
}

/// No pod was evicted twice, and no other at all.
fn each_once(cluster: &Cluster, uids: &[String]) -> Result<()> {
    let mut times: BTreeMap<String, u32> = BTreeMap::new();
    for eviction in cluster.evictions()? {
        *times.entry(eviction.pod.uid.to_string()).or_default() += 1;
    }
    for uid in uids {
        let times = times.remove(uid);
        ensure!(times == Some(1), "pod {uid} was evicted {times:?} times");
    }
    let others: Vec<_> = times.keys().collect();
    // Of cases before this one.
    let ours = cluster.api.list("/api/v1/namespaces/default/pods")?;
    let ours = ours
        .iter()
        .filter_map(|pod| pod["metadata"]["uid"].as_str());
    for uid in ours {
        ensure!(
            !others.iter().any(|other| *other == uid),
            "pod {uid} was evicted"
        );
    }
    Ok(())
}
