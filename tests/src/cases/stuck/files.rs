//! A file of a pod's cgroup does not answer.

use anyhow::{Result, ensure};

use super::{MIB, NO_WAY, health};
use crate::cases::eviction::small;
use crate::cases::reaping::Scene;
use crate::cases::{Context, skip};
use crate::harness::{Cgroup, Options, PodSpec, Standstill, eventually, http_get, until};

/// A cgroup's file that cannot be read holds the reconciler inside the kernel. That is said, and pods are evicted all the
/// same; what could not be written is written once the file answers.
pub(super) fn is_noticed(context: &Context) -> Result<()> {
    let options = Options {
        env: vec![("PODWARDEN_LOOP_PATIENCE".to_owned(), "9".to_owned())],
        ..small("enforce")
    };
    let scene = Scene::new(context, &options)?;
    let mut victim = scene.victim.start(&["anon", "--mib", "128"])?;
    scene.victim_holds(128)?;
    let changing = PodSpec::limited("changing", "16Mi");
    let changed = scene.node.manifest(&changing)?;
    holds_limit(context, &changed, 16)?;
    let Some(standstill) = Standstill::over(changed.memory_limit_file())? else {
        return skip(NO_WAY);
    };
    let larger = PodSpec::limited("changing", "24Mi").with_uid_of(&changing);
    scene.node.manifest(&larger)?;
    until(context.limit(30), "a question to the file", || {
        standstill.is_asked()
    })?;
    let text = eventually(context.limit(60), || {
        let answer = http_get(scene.node.agent.socket(), "/healthz")?;
        ensure!(answer.status == 503, "/healthz answers {}", answer.status);
        Ok(answer.text())
    })?;
    ensure!(text.contains("reconciler is stuck"), "/healthz says {text}");
    let filler = scene.fill()?;
    ensure!(!victim.wait(context.limit(20))?.success());
    drop(standstill);
    health(&scene.node, context, 200, 1)?;
    holds_limit(context, &changed, 24)?;
    let evictions = scene.evictions(1)?;
    ensure!(
        evictions.len() == 1 && evictions[0].pod.uid == scene.victim.uid(),
        "{evictions:?}"
    );
    drop(filler);
    scene.node.finish()
}

/// A write that does not come back holds nothing but its cgroup: a new pod gets its limits meanwhile, figures are those of
/// now, pods are evicted, and no health check fails. It is said, and written once the file answers.
pub(super) fn write_is_abandoned(context: &Context) -> Result<()> {
    let scene = Scene::new(context, &small("enforce"))?;
    let node = &scene.node;
    let mut victim = scene.victim.start(&["anon", "--mib", "128"])?;
    scene.victim_holds(128)?;
    let changing = PodSpec::limited("changing", "16Mi");
    let changed = node.manifest(&changing)?;
    holds_limit(context, &changed, 16)?;
    let file = changed.memory_limit_file();
    let Some(standstill) = Standstill::of_writes_to(file)? else {
        return skip(NO_WAY);
    };
    node.manifest(&PodSpec::limited("changing", "24Mi").with_uid_of(&changing))?;
    until(context.limit(30), "a write to the file", || {
        standstill.is_asked()
    })?;
    let said = || -> Result<bool> {
        let degradations = node.agent.node()?.degradations;
        let of_it = format!("pod{} is not brought up to date", changing.uid);
        Ok(degradations.iter().any(|d| d.contains(&of_it)))
    };
    eventually(context.limit(30), || {
        ensure!(said()?, "not said");
        Ok(())
    })?;
    let new = node.manifest(&PodSpec::limited("new", "32Mi"))?;
    holds_limit(context, &new, 32)?;
    let filler = scene.fill()?;
    ensure!(!victim.wait(context.limit(20))?.success());
    let evictions = scene.evictions(1)?;
    ensure!(
        evictions.len() == 1 && evictions[0].pod.uid == scene.victim.uid(),
        "{evictions:?}"
    );
    health(node, context, 200, 1)?;
    holds_limit(context, &changed, 16)?;
    drop(standstill);
    holds_limit(context, &changed, 24)?;
    eventually(context.limit(30), || {
        ensure!(!said()?, "still said");
        Ok(())
    })?;
    drop(filler);
    scene.node.finish()
}

/// Waits until the limit of a pod's memory is `mib`.
fn holds_limit(context: &Context, cgroup: &Cgroup, mib: u64) -> Result<()> {
    let file = cgroup.memory_limit_file();
    eventually(context.limit(30), || {
        let text = std::fs::read_to_string(&file)?;
        ensure!(
            text.trim() == (mib * MIB).to_string(),
            "the limit is {text}"
        );
        Ok(())
    })
}
