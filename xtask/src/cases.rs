//! Where and how the end-to-end cases run: what `cargo xtask test` is given and hands to `e2e machine test`
//! as JSON.

use std::str::FromStr;

use clap::Args;
use serde::{Deserialize, Serialize};

/// The virtual machines, by their names; a machine's name begins with its kernel's series.
pub const GUESTS: [&str; 7] = [
    "6.1",
    "6.12",
    "7.2",
    "6.12-systemd",
    "6.1-256cpus",
    "6.12-kubernetes",
    "6.12-kubernetes-13",
];
/// When a virtual machine is killed, in seconds.
const VM_TIMEOUT: u64 = 4200;
/// When `cargo xtask ci` begins no further case in a machine that has run on this kernel, and takes the same way on
/// every one: those that depend on the kernel take 11 minutes, and all of it is to take less than 45.
const PORTABLE_WITHIN: u64 = 800;
/// How many stages of cases run at a time: two of those on this kernel, those on a cluster, and three machines. They wait
/// for more than half of the time, and what a case asks for does not depend on how fast a machine is.
const AT_ONCE: usize = 6;

/// Where the end-to-end cases run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// They do not.
    Nowhere,
    /// On the kernel that runs here.
    Here,
    /// In the virtual machine of that name.
    On(String),
}

/// Reads one value of `--kernels`.
fn place(text: &str) -> Result<Place, String> {
    match text {
        "none" => Ok(Place::Nowhere),
        "native" => Ok(Place::Here),
        name if GUESTS.contains(&name) => Ok(Place::On(name.to_owned())),
        _ => Err(format!("known are native, {} and none", GUESTS.join(", "))),
    }
}

/// What the cases are run with.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub struct Request {
    /// Where the end-to-end cases run: native, 6.1, 6.12, 7.2, 6.12-systemd (those about its
    /// cgroup driver), 6.1-256cpus (what is kept for each possible CPU), 6.12-kubernetes (a kubelet on
    /// cgroup v2, which takes --include-slow), 6.12-kubernetes-13 (the same with Debian 13's containerd), or none.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = place,
        default_value = "native,6.1,6.12,7.2,6.12-systemd,6.1-256cpus,6.12-kubernetes,6.12-kubernetes-13"
    )]
    pub kernels: Vec<Place>,
    /// Runs only the cases with this in their name.
    #[arg(long)]
    pub filter: Option<String>,
    /// How much they do.
    #[command(flatten)]
    pub extent: Extent,
    /// Goes on after a stage that failed.
    #[arg(long)]
    pub keep_going: bool,
    /// Kills a virtual machine after this many seconds.
    #[arg(long, default_value_t = VM_TIMEOUT)]
    pub vm_timeout: u64,
    /// Runs each case in each machine. Else those that take the same way on every kernel run on this one and in one
    /// machine.
    #[arg(long)]
    pub everywhere: bool,
    /// Begins no further one of those in a machine after this many seconds; they come last there.
    #[arg(long, value_name = "SECONDS")]
    pub portable_within: Option<u64>,
    /// Begins no further case at all after this many seconds: each of them counts as skipped.
    #[arg(long, value_name = "SECONDS")]
    pub within: Option<u64>,
    /// Runs that many stages of cases at a time: three on this kernel, and one in each machine.
    #[arg(long, value_name = "N", default_value_t = AT_ONCE)]
    pub at_once: usize,
}

/// How much the cases do, and by what they choose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct Extent {
    /// Runs also the cases that take minutes each.
    #[arg(long)]
    pub include_slow: bool,
    /// How often the cases that repeat themselves do so, instead of a few times.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: Option<u32>,
    /// By what the cases choose at random: the seed that a failed run printed repeats what it did, in its order.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Of the pods that `kubernetes_plan` chooses by the seed, one part: 2/3 is the second of three, which different
    /// runs may take.
    #[arg(long, value_name = "PART/OF", requires = "seed")]
    pub part: Option<Share>,
    /// Runs a case that failed again, at most this often. It counts as passed when it then holds, and
    /// its failures are shown: on a machine that others use too, a wait can be too short.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub retries: u32,
}

/// One of several parts of a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Which, from 0.
    pub part: usize,
    /// How many there are.
    pub of: usize,
}

impl Share {
    /// The whole.
    pub const ALL: Self = Self { part: 0, of: 1 };

    /// Whether it has what bears this name. A further name moves no other to another part.
    pub fn has(self, name: &str) -> bool {
        let sum: usize = name.bytes().map(usize::from).sum();
        sum % self.of == self.part
    }

    /// Every n-th of a list.
    pub fn take_of<T>(self, list: Vec<T>) -> Vec<T> {
        list.into_iter().skip(self.part).step_by(self.of).collect()
    }
}

impl Default for Share {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/');
        let read = parts.and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
        match read {
            Some((part @ 1.., of)) if part <= of => Ok(Self { part: part - 1, of }),
            _ => Err("it is two numbers, the first from 1 to the second: 2/3".to_owned()),
        }
    }
}

impl Request {
    /// Everything, to the end.
    pub fn everything() -> Self {
        let guests = GUESTS.map(|name| Place::On(name.to_owned()));
        Self {
            kernels: [Place::Here].into_iter().chain(guests).collect(),
            filter: None,
            extent: Extent {
                retries: 2,
                ..Extent::default()
            },
            keep_going: true,
            vm_timeout: VM_TIMEOUT,
            everywhere: false,
            portable_within: Some(PORTABLE_WITHIN),
            within: None,
            at_once: AT_ONCE,
        }
    }

    /// Whether the cases run on any kernel.
    pub fn anywhere(&self) -> bool {
        self.kernels.iter().any(|place| *place != Place::Nowhere)
    }

    /// Whether the cases run on this kernel.
    pub fn native(&self) -> bool {
        self.kernels.contains(&Place::Here)
    }

    /// The virtual machines in which they run.
    pub fn guests(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().filter_map(|place| match place {
            Place::On(name) => Some(name.as_str()),
            Place::Here | Place::Nowhere => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_whole() {
        assert_eq!("1/1".parse(), Ok(Share::ALL));
        assert_eq!("2/3".parse(), Ok(Share { part: 1, of: 3 }));
        for wrong in ["", "2", "0/3", "4/3", "1/0", "-1/3", "a/b", "1/2/3"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
        let all: Vec<u32> = (0..10).collect();
        let mut parts = Vec::new();
        for part in 0..3 {
            parts.extend(Share { part, of: 3 }.take_of(all.clone()));
        }
        parts.sort_unstable();
        assert_eq!(parts, all);
    }

    #[test]
    fn kernels_are_chosen_by_series() {
        assert_eq!(place("none"), Ok(Place::Nowhere));
        assert_eq!(place("native"), Ok(Place::Here));
        assert_eq!(place("6.12"), Ok(Place::On("6.12".to_owned())));
        assert!(
            place("5.4")
                .is_err_and(|why| why.contains("6.1, 6.12, 7.2, 6.12-systemd, 6.1-256cpus, "))
        );
    }
}
