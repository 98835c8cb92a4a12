//! The start: from a configuration to a reconciler, in an order that leaves nothing half done.
//!
//! | module | step |
//! |---|---|
//! | `process` | limits and memory of this process |
//! | `event_log` | what agents before this one recorded, and the log's thread |
//! | `frozen` | thaws what an agent before this one left frozen |
//! | `site` | machine, hierarchies, driver, names |
//! | `kubepods` | waits for a kubepods cgroup that another program makes |
//! | `tree` | the first pass over the cgroups, before the kernel programs, which need kubepods |
//! | `programs` | the kernel programs |
//! | `engines` | accounts and reactor |
//! | `bandwidth` | co-location: quotas that an agent before this one left, and the threads of the strategies |
//! | `status` | eviction status in the API, teardown in the runtime |
//! | `standby` | waits for the end of another agent, prepared to take over |
//! | `own_pod` | the pod of this process |
//! | `beside_kubelet` | a kubelet where podwarden is to own the tree |

mod bandwidth;
mod beside_kubelet;
mod engines;
mod error;
pub(super) mod event_log;
mod frozen;
mod kubepods;
mod own_pod;
pub(crate) mod process;
mod programs;
mod site;
pub(super) mod standby;
pub(super) mod status;
mod tree;

use std::{fs, path::Path, sync::Arc};

use podwarden_cgroup::AgentLock;
use podwarden_policy::evict::Exemptions;

pub(crate) use self::error::StartError;
use self::{engines::Engines, site::Site};
use super::reconciler::{
    AtStart, Environment, Reconciler, Writers, eviction::EvictionManager,
    figures::FiguresPublisher, hierarchy::Hierarchy, kubelet::KubeletFacts, pods::Pods,
};
use crate::{
    api::{published::Published, server, types::Eviction},
    colocation::reclaimed::Reclaimer,
    config::{Config, Mode},
    pods::runtime::{Client, Follower},
    pods::{Apiserver, Feed, feed},
};

/// Where agents lock their root, so that two never share one.
pub(super) const LOCK_DIR: &str = "/run/podwarden";

/// Takes the root for this agent.
pub(super) fn lock(config: &Config) -> Result<AgentLock, StartError> {
    fs::create_dir_all(LOCK_DIR).map_err(StartError::LockDir)?;
    AgentLock::acquire(Path::new(LOCK_DIR), &config.cgroup_root).map_err(StartError::Lock)
}

/// Opens the API's addresses, on its own thread.
pub(super) async fn api(config: &Config) -> Result<server::Server, StartError> {
    let listen = server::Listen {
        tcp: config.listen,
        unix: Some(config.api_socket.clone()),
        reach: server::Reach {
            api: config.listen_api,
            hosts: config.listen_hosts.clone(),
        },
        secure: config
            .secure_listen
            .clone()
            .map(|secure| server::SecureListen {
                address: secure.address,
                files: secure.files,
                ttls: secure.ttls,
                node_name: config.node_name.clone(),
                apiserver: Apiserver::of(&config.apiserver),
            }),
        limits: server::Limits::default(),
    };
    let server = server::Server::open(listen).await;
    server.map_err(StartError::Http)
}

/// Builds the reconciler. `recorded` are evictions by agents before this one, each with its time; `prepared` is what an
/// agent that has waited made ready.
pub(super) async fn reconciler(
    config: Config,
    published: Arc<Published>,
    recorded: Vec<(String, Eviction)>,
    prepared: standby::Prepared,
) -> Result<Reconciler, StartError> {
    let frozen = frozen::take_over(&config)?;
    let mut site = prepared.site.map_or_else(|| Site::find(&config), Ok)?;
    let mut writer = tree::writer(&config, site.driver)?;
    let without_systemd = writer.lost.take();
    let runtime = runtime(&config)?;
    let feed = sources(&config, &site, &published)?;
    let mut stats = site.stats(&config);
    let tree = site.tree(&config, &stats, &published).await?;
    bandwidth::restore(&config, &tree);
    let set = Arc::clone(&feed.pods.borrow());
    let mut kubelet = KubeletFacts::new(&config, &site.node, &site.layout);
    kubelet.read(&tree);
    site.node = kubelet.node();

    let mut first = tree::first_pass(
        &config,
        &site,
        &tree,
        writer.noting(&frozen),
        &set,
        runtime.as_ref().map(|runtime| runtime.names().clone()),
        &published,
    );
    let engines = Engines::start(&config, &site, &tree, prepared.programs, prepared.reactor)
        // What was made for an agent that does not run goes.
        .inspect_err(|_| first.actor.remove_unused(&tree))?;
    stats.profile = engines.profile.as_str().to_owned();
    stats.degradations = engines.degradations;
    stats
        .degradations
        .extend(without_systemd.into_iter().chain(first.without_thread));
    stats.degradations.extend(beside_kubelet::warning(&config));
    site::announce(&stats);

    let pods = feed.pods.clone();
    let own_pod = own_pod::find();
    let client = runtime.as_ref().map(Follower::client);
    let pod_killer = status::pod_killer(&config, feed.clone(), client, own_pod.clone());
    let status = match config.mode {
        Mode::Observe => None,
        Mode::Enforce => {
            let client = runtime.as_ref().map(Follower::client);
            status::start(&config, feed, client, &published, site.sizes(), &recorded)
        }
    };
    let reclaimer = Reclaimer::new(
        config.colocation.reclaimed,
        config.state_dir.as_deref(),
        &config.node_name,
    );
    let env = Environment {
        node_level: config.node_level(&site.machine),
        exemptions: Exemptions {
            own_pod,
            ..config.exemptions()
        },
        config,
        node: site.node,
        tier_bounds: kubelet.tiers(),
        tree,
        layout: site.layout,
        frozen,
        published,
    };
    let (colocation, without_burst) = bandwidth::start(&env, engines.waits);
    stats.degradations.extend(without_burst);
    let eviction = EvictionManager::new(&env, engines.reactor, status, pod_killer);
    let figures = FiguresPublisher::new(&env.tree, engines.accounting, stats, reclaimer);
    Ok(Reconciler::new(
        env,
        Pods::new(pods, runtime),
        Writers {
            hierarchy: Hierarchy::new(first.actor, first.converger, first.fresh),
            colocation,
        },
        eviction,
        kubelet,
        figures,
        AtStart {
            changes: engines.changes,
            recorded: &recorded,
        },
    ))
}

/// Begins to follow the container runtime, where one is configured.
fn runtime(config: &Config) -> Result<Option<Follower>, StartError> {
    let socket = config.container_runtime_endpoint.as_deref();
    let client = socket.map(Client::new).transpose();
    Ok(client.map_err(StartError::Runtime)?.map(Follower::start))
}

/// Begins to follow the sources of pods.
fn sources(config: &Config, site: &Site, published: &Published) -> Result<Feed, StartError> {
    let exists = site.has_cgroup_of(config);
    let feed = feed::start(config, exists).map_err(StartError::Pods)?;
    published.set_sources(feed.sources.clone());
    Ok(feed)
}
