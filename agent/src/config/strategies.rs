//! What the CPU strategies of co-location go by, as far as configuration and node decide it.

use podwarden_policy::{
    MilliCpu, Node,
    colocation::{
        burst::{NodeState, Policy},
        hold::Bounds,
        strategies::{Burst, Strategies, Suppress, Wait, Waited},
        suppress::Capacity,
    },
    reserve,
};

use super::ColocationConfig;
use crate::base::clock::nanos;

impl ColocationConfig {
    /// What best effort may use while a protected pod waits.
    pub fn bounds(&self, node: &Node) -> Bounds {
        let cpus = node.cpu_capacity;
        Bounds {
            cpus,
            floor: MilliCpu(cpus.0.saturating_mul(self.wait.min_percent) / 100),
        }
    }

    /// What the CPU strategies that are on go by, before anything is measured.
    pub fn cpu_strategies(&self, node: &Node) -> Strategies {
        let cpus = node.cpu_capacity;
        let suppress = self.suppress.map(|suppress| Suppress {
            node: Capacity {
                capacity: cpus,
                reserved: cpus.saturating_sub(reserve::allocatable(node).cpu),
            },
            threshold: suppress.threshold,
            policy: suppress.policy,
            measured: None,
        });
        let wait = self.wait.enable.then(|| Wait {
            bounds: self.bounds(node),
            objective_nanos: nanos(self.wait.objective),
            measured: Waited::default(),
        });
        let burst = (self.burst.policy != Policy::None).then_some(Burst {
            config: self.burst,
            state: NodeState::Unknown,
        });
        Strategies {
            suppress,
            wait,
            burst,
        }
    }
}
