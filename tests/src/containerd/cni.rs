//! The network: the `ptp` plugin behind a shim that writes down each request, and whether the namespace is
//! there, before the plugin sees it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Where Debian has the plugins, then Fedora, then other systems.
const PLUGINS: [&str; 3] = ["/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin"];

/// `nsfs` is the file system that a namespace's file is of, once it is bound to a name.
const SHIM: &str = r#"#!/bin/sh
namespace=$(stat -f -c %T "$CNI_NETNS" 2>/dev/null) || namespace=missing
echo "$CNI_COMMAND $CNI_CONTAINERID $namespace" >> "$LOG"
exec $PLUGIN
"#;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// `ADD` or `DEL`.
    pub(crate) command: String,
    /// The sandbox's id.
    pub(crate) sandbox: String,
    /// The network namespace was there.
    pub(crate) has_namespace: bool,
}

/// Where the plugins are, if all that are needed are.
pub(crate) fn plugins() -> Option<PathBuf> {
    let needed = ["ptp", "host-local", "loopback"];
    let mut places = PLUGINS.into_iter().map(PathBuf::from);
    places.find(|dir| needed.iter().all(|name| dir.join(name).is_file()))
}

/// Puts plugins and configuration below `dir`. The range of addresses is the one for benchmarks (RFC 2544):
/// unused, and only the namespace of these processes has it.
pub(super) fn install(plugins: &Path, dir: &Path) -> Result<()> {
    let (bin, conf) = (dir.join("bin"), dir.join("net.d"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&conf)?;
    for plugin in ["host-local", "loopback"] {
        symlink(plugins.join(plugin), bin.join(plugin))?;
    }
    let shim = bin.join("shim");
    let log = log(dir).display().to_string();
    let plugin = plugins.join("ptp").display().to_string();
    let text = SHIM.replace("$LOG", &log).replace("$PLUGIN", &plugin);
    fs::write(&shim, text).context("write the shim")?;
    fs::set_permissions(&shim, Permissions::from_mode(0o755))?;
    let plugin = serde_json::json!({
        "type": "shim",
        "ipMasq": false,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": "198.18.0.0/24"}]],
            "dataDir": dir.join("addresses"),
        },
    });
    let list = serde_json::json!({"cniVersion": "0.4.0", "name": "e2e", "plugins": [plugin]});
    fs::write(conf.join("10-e2e.conflist"), list.to_string()).context("write the CNI configuration")
}

/// What was written down so far.
pub(super) fn asked(dir: &Path) -> Result<Vec<Asked>> {
    let path = log(dir);
    let text = match path.exists() {
        true => fs::read_to_string(&path).context("read the shim's log")?,
        false => String::new(),
    };
    let mut asked = Vec::new();
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        if let [command @ ("ADD" | "DEL"), sandbox, namespace] = words[..] {
            asked.push(Asked {
                command: command.to_owned(),
                sandbox: sandbox.to_owned(),
                has_namespace: namespace == "nsfs",
            });
        }
    }
    Ok(asked)
}

fn log(dir: &Path) -> PathBuf {
    dir.join("asked")
}
