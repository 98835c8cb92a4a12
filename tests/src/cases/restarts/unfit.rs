//! What is pinned is not always what the agent can go on with.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use aya::maps::Array;
use nix::sys::signal::Signal;

use super::{Rig, storm};
use crate::cases::Context;
use crate::harness::PodSpec;

/// What is pinned and does not fit is put aside, or left alone, and the agent runs.
pub(super) fn unfit(context: &Context) -> Result<()> {
    let mut rig = Rig::new(context)?;
    let pod = rig.node.pod(PodSpec::burstable("counted", "32Mi"))?;
    let stay = pod.start(&["sleep"])?;
    storm(&rig, &pod, &pod.main, 10)?;
    let exits = |rig: &Rig, expected: u64| {
        rig.node.expect(pod.uid(), |stats| {
            let exits = stats.exits.total;
            ensure!(exits == expected, "{exits} exits of {expected}");
            Ok(())
        })
    };
    let of = |rig: &Rig, name: &str| {
        let pinned = rig.pinned();
        let found = pinned.into_iter().find(|path| path.ends_with(name));
        found.with_context(|| format!("no map {name} is pinned"))
    };

    // Another size: the accounts begin anew, and are kept from then on.
    rig.end(Signal::SIGKILL)?;
    let accounts = of(&rig, "accounts")?;
    fs::remove_file(&accounts)?;
    Array::<_, u64>::create(16, 0)?.pin(&accounts)?;
    rig.start()?;
    ensure!(rig.says("accounts begin anew"), "it does not say so");
    exits(&rig, 0)?;
    storm(&rig, &pod, &pod.main, 4)?;
    rig.end(Signal::SIGKILL)?;
    rig.start()?;
    exits(&rig, 5)?;

    // Another layout: the same.
    rig.end(Signal::SIGTERM)?;
    let layout = accounts.parent().context("a map at the root")?;
    let other = layout.with_file_name("v0-hierarchy0");
    fs::rename(layout, &other)?;
    rig.start()?;
    ensure!(rig.says("of another version"), "it does not say so");
    ensure!(!other.exists(), "{} is left", other.display());
    exits(&rig, 0)?;

    // What is no map is not the agent's: it runs without, and says where.
    rig.end(Signal::SIGKILL)?;
    fs::remove_file(&accounts)?;
    fs::create_dir(&accounts)?;
    rig.start()?;
    let said = rig.node.agent.node()?.degradations;
    let path = accounts.display().to_string();
    ensure!(said.iter().any(|s| s.contains(&path)), "{said:?}");
    ensure!(accounts.is_dir(), "it was removed");
    storm(&rig, &pod, &pod.main, 3)?;
    drop(stay);
    rig.node.finish()
}
