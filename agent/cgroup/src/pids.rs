//! The tasks of a cgroup, and forks that a limit on them has refused.

use podwarden_policy::settings::Controller;

use crate::{
    CgroupPath, Error, Result, Tree,
    io::{self, parse_u64},
    tree::directory_id,
};

impl Tree {
    /// The kernel's id of a cgroup in the pids controller's hierarchy; on v2 the same as [`Tree::id`].
    pub fn pids_id(&self, cgroup: &CgroupPath) -> Result<u64> {
        directory_id(&self.path(Controller::Pids, cgroup)?)
    }

    /// The tasks of a cgroup and of all below it: threads, each of which counts against `pids.max` (`pids.current`).
    /// [`Error::NotFound`] also for a hierarchy's root.
    pub fn tasks(&self, cgroup: &CgroupPath) -> Result<u64> {
        let file = self.path(Controller::Pids, cgroup)?.join("pids.current");
        let text = io::read_text(&file)?;
        parse_u64(text.trim_end().as_bytes()).ok_or_else(|| Error::malformed(file, "a number"))
    }

    /// Forks that were refused, since the cgroup was made (`max` of `pids.events`). [`Error::NotFound`] also for a
    /// hierarchy's root.
    ///
    /// From Linux 6.11 on v2 counts those that the limit of this cgroup or of one below it refused; v1, and v2 before,
    /// count those of tasks directly in this cgroup, whichever limit above refused them (`pids_event`,
    /// kernel/cgroup/pids.c).
    pub fn refused_forks(&self, cgroup: &CgroupPath) -> Result<u64> {
        let file = self.path(Controller::Pids, cgroup)?.join("pids.events");
        let text = io::read_text(&file)?;
        parse(&text).ok_or_else(|| Error::malformed(file, "max"))
    }
}

fn parse(text: &str) -> Option<u64> {
    let count = text.lines().find_map(|line| line.strip_prefix("max "))?;
    parse_u64(count.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_count_has_a_name() {
        assert_eq!(parse("max 17\n"), Some(17));
        assert_eq!(parse("forks 3\nmax 0\n"), Some(0));
        for wrong in ["", "17\n", "max\n", "max -1\n", "maximum 3\n"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
