//! A kubelet that runs where podwarden is to own the tree: both would write every value.

use std::{fs, path::Path};

use podwarden_policy::plan::Ownership;

use crate::config::Config;

/// The degradation, where there is a kubelet of this tree: with its default `cgroupRoot`, as podwarden's.
pub(super) fn warning(config: &Config) -> Option<String> {
    if config.ownership != Ownership::Own || !config.cgroup_root.trim_matches('/').is_empty() {
        return None;
    }
    warning_of(Path::new("/proc"))
}

fn warning_of(proc: &Path) -> Option<String> {
    let pid = kubelet(proc)?;
    Some(format!(
        "ownership is own, and a kubelet runs here (process {pid}): both write the same cgroups, again and again; \
         set ownership: assist, or stop the kubelet"
    ))
}

/// The process id of a kubelet.
fn kubelet(proc: &Path) -> Option<u32> {
    let entries = fs::read_dir(proc).ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let comm = fs::read_to_string(proc.join(pid.to_string()).join("comm"));
        comm.is_ok_and(|comm| comm.trim_end() == "kubelet")
    })
    .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_is_found_by_its_name() {
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: &str, comm: &str| {
            fs::create_dir(proc.path().join(pid)).unwrap();
            fs::write(proc.path().join(pid).join("comm"), comm).unwrap();
        };
        process("7", "kubelet-exporter\n");
        process("self", "kubelet\n");
        fs::create_dir(proc.path().join("9")).unwrap();
        assert_eq!(warning_of(proc.path()), None);
        process("812", "kubelet\n");
        let said = warning_of(proc.path()).unwrap();
        assert!(
            said.contains("process 812") && said.contains("ownership: assist"),
            "{said}"
        );
    }

    #[test]
    fn nothing_is_said_beside_one_and_below_another_root() {
        let config =
            |text: &str| Config::parse("test.yaml", text, crate::config::Overrides::default());
        let head = "apiVersion: podwarden.io/v1alpha1\nkind: AgentConfig\n";
        for rest in ["ownership: assist\n", "cgroupRoot: /sandbox\n"] {
            let config = config(&format!("{head}{rest}")).unwrap();
            assert_eq!(warning(&config), None, "{rest}");
        }
    }
}
