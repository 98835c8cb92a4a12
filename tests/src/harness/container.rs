//! A container as a kubelet would have it started from the shipped DaemonSet: its command line, its
//! environment, its mounts in a root file system that has nothing else of the node, its cgroup. It is
//! privileged and in the node's PID and network namespaces, which the DaemonSet has to ask for.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, chroot};
use serde_json::Value;

use super::Cgroup;

/// What is shipped.
const SHIPPED: &str = include_str!("../../../deploy/kubernetes/podwarden.yaml");
/// Where the image has its program.
const PROGRAM: &str = "/usr/local/bin/podwarden";
/// What of a system the image has that the program needs: libraries, and whom to trust.
const IMAGE: [&str; 6] = [
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/etc/ssl/certs",
    "/usr/share/ca-certificates",
];

/// The objects of the shipped manifest.
#[derive(Debug)]
pub(crate) struct Shipped(Vec<Value>);

impl Shipped {
    /// Reads it.
    pub(crate) fn read() -> Result<Self> {
        let objects =
            serde_saphyr::from_multiple(SHIPPED).context("deploy/kubernetes/podwarden.yaml")?;
        Ok(Self(objects))
    }

    /// The one object of a kind.
    pub(crate) fn object(&self, kind: &str) -> Result<&Value> {
        let mut found = self.0.iter().filter(|object| object["kind"] == kind);
        match (found.next(), found.next()) {
            (Some(object), None) => Ok(object),
            _ => bail!("deploy/kubernetes/podwarden.yaml has not one {kind}"),
        }
    }

    /// What the agent may ask of the API server, each as `verb resource`.
    pub(crate) fn rights(&self) -> Result<Vec<String>> {
        let rules = self.object("ClusterRole")?["rules"].as_array();
        let mut rights = Vec::new();
        for rule in rules.context("the ClusterRole has no rules")? {
            for resource in texts(&rule["resources"]) {
                rights.extend(texts(&rule["verbs"]).map(|verb| format!("{verb} {resource}")));
            }
        }
        rights.sort();
        Ok(rights)
    }
}

/// The strings of a list.
fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// A directory of the machine, or a file, and where the container has it.
#[derive(Debug)]
struct Mount {
    source: PathBuf,
    target: PathBuf,
    read_only: bool,
}

/// See the module. Nothing is mounted but in the mount namespaces of its processes.
#[derive(Debug)]
pub(crate) struct Container {
    root: PathBuf,
    host: PathBuf,
    mounts: Vec<Mount>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    cgroup: Cgroup,
}

impl Container {
    /// Made in the empty directory `dir`, with `program` in its image. `fields` are what the downward API
    /// tells; `change` is done to the configuration. Of the node's directories those of the kernel are
    /// the machine's own, the others begin empty.
    pub(crate) fn new(
        shipped: &Shipped,
        dir: &Path,
        program: &Path,
        fields: &BTreeMap<&str, String>,
        change: impl FnOnce(&str) -> String,
        cgroup: Cgroup,
    ) -> Result<Self> {
        let pod = &shipped.object("DaemonSet")?["spec"]["template"]["spec"];
        for (key, wanted) in [("hostPID", true), ("hostNetwork", true)] {
            ensure!(pod[key] == wanted, "{key} is {}", pod[key]);
        }
        let spec = &pod["containers"][0];
        ensure!(
            spec["securityContext"]["privileged"] == true,
            "it is not privileged"
        );
        let env = environment(spec, fields)?;
        let mut this = Self {
            root: dir.join("root"),
            host: dir.join("host"),
            mounts: Vec::new(),
            args: texts(&spec["args"]).map(|arg| expand(arg, &env)).collect(),
            env,
            cgroup,
        };
        for part in IMAGE {
            this.part_of_image(Path::new(part))?;
        }
        this.mount(program, PROGRAM, true)?;
        // Every container has these two.
        for own in ["/proc", "/dev"] {
            this.mount(own, own, false)?;
        }
        let config = dir.join("config");
        fs::create_dir_all(&config)?;
        let data = shipped.object("ConfigMap")?["data"]["config.yaml"].as_str();
        let text = change(data.context("the ConfigMap has no config.yaml")?);
        fs::write(config.join("config.yaml"), text)?;
        for volume in pod["volumes"].as_array().context("it has no volumes")? {
            let source = if volume["configMap"].is_object() {
                config.clone()
            } else if volume["emptyDir"].is_object() {
                this.pod_directory(&volume["name"])?
            } else {
                this.host_path(&volume["hostPath"])?
            };
            let mounts = spec["volumeMounts"].as_array().into_iter().flatten();
            for mount in mounts.filter(|mount| mount["name"] == volume["name"]) {
                let target = mount["mountPath"].as_str().context("no mountPath")?;
                this.mount(&source, target, mount["readOnly"] == true)?;
            }
        }
        Ok(this)
    }

    /// An empty directory of the pod's own.
    fn pod_directory(&self, name: &Value) -> Result<PathBuf> {
        let name = name.as_str().context("a volume has no name")?;
        let dir = self.root.with_file_name("pod").join(name);
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// A file that the kubelet did not think of.
    pub(crate) fn with_file(&mut self, file: &Path, target: &str) -> Result<()> {
        self.mount(file, target, true)
    }

    /// Where the machine has what the container has at `path`.
    pub(crate) fn on_host(&self, path: &str) -> PathBuf {
        self.host.join(path.trim_start_matches('/'))
    }

    /// Its first process, with further arguments.
    pub(crate) fn start(&self, further: &[&str]) -> Result<Command> {
        let mut command = self.exec(&[])?;
        command.args(&self.args).args(further);
        Ok(command)
    }

    /// Another process in it.
    pub(crate) fn exec(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(PROGRAM);
        command
            .args(args)
            .env_clear()
            .envs(self.env.iter().cloned());
        let root = path(&self.root)?;
        let procs: Vec<CString> = self
            .cgroup
            .dirs()
            .map(|dir| path(&dir.join("cgroup.procs")))
            .collect::<Result<_>>()?;
        let mounts: Vec<(CString, CString, bool)> = self
            .mounts
            .iter()
            .map(|m| Ok((path(&m.source)?, path(&m.target)?, m.read_only)))
            .collect::<Result<_>>()?;
        let enter = move || {
            for file in &procs {
                use nix::fcntl::{OFlag, open};
                use nix::sys::stat::Mode;
                let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
                let file = open(file.as_c_str(), flags, Mode::empty())?;
                nix::unistd::write(&file, b"0")?;
            }
            unshare(CloneFlags::CLONE_NEWNS)?;
            let (none, private) = (None::<&str>, MsFlags::MS_PRIVATE | MsFlags::MS_REC);
            mount(none, c"/", none, private, none)?;
            for (source, target, read_only) in &mounts {
                let (source, target) = (source.as_c_str(), target.as_c_str());
                let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
                mount(Some(source), target, none, bind, none)?;
                if *read_only {
                    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
                    mount(none, target, none, flags, none)?;
                }
            }
            chroot(root.as_c_str())?;
            Ok(chdir(c"/")?)
        };
        // SAFETY: only system calls between fork and exec, on paths that were built before.
        unsafe { command.pre_exec(enter) };
        Ok(command)
    }

    fn part_of_image(&mut self, part: &Path) -> Result<()> {
        match fs::read_link(part) {
            Ok(to) => {
                let link = self.at(part);
                fs::create_dir_all(link.parent().context("a link at the root")?)?;
                symlink(to, link).context("make a link of the image")
            }
            Err(_) if part.is_dir() => self.mount(part, part, true),
            Err(_) => Ok(()),
        }
    }

    /// The source of a `hostPath`, as its type wants it.
    fn host_path(&self, volume: &Value) -> Result<PathBuf> {
        let host = volume["path"].as_str().context("a volume has no path")?;
        let source = match host.starts_with("/sys") {
            true => host.into(),
            false => self.on_host(host),
        };
        match volume["type"].as_str() {
            Some("DirectoryOrCreate") => fs::create_dir_all(&source)?,
            Some("Directory") => ensure!(source.is_dir(), "{host} is no directory"),
            other => bail!("{host}: a volume of type {other:?}"),
        }
        Ok(source)
    }

    fn at(&self, target: &Path) -> PathBuf {
        self.root.join(target.strip_prefix("/").unwrap_or(target))
    }

    fn mount(
        &mut self,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
        read_only: bool,
    ) -> Result<()> {
        let (source, target) = (source.as_ref(), self.at(target.as_ref()));
        // What is in another mount has to be there already.
        if !self.mounts.iter().any(|m| target.starts_with(&m.target)) {
            if source.is_dir() {
                fs::create_dir_all(&target)?;
            } else {
                fs::create_dir_all(target.parent().context("a file at the root")?)?;
                File::create(&target)?;
            }
        }
        self.mounts.push(Mount {
            source: source.to_owned(),
            target,
            read_only,
        });
        Ok(())
    }
}

fn path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// The environment of a container, with what the downward API tells.
fn environment(
    container: &Value,
    fields: &BTreeMap<&str, String>,
) -> Result<Vec<(String, String)>> {
    let variables = container["env"].as_array().into_iter().flatten();
    variables
        .map(|variable| {
            let name = variable["name"]
                .as_str()
                .context("a variable has no name")?;
            let field = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str();
            let value = match (variable["value"].as_str(), field) {
                (Some(value), None) => value,
                (None, Some(field)) => fields
                    .get(field)
                    .with_context(|| format!("{name}: no value for {field}"))?,
                _ => bail!("{name} has neither a value nor a field"),
            };
            Ok((name.to_owned(), value.to_owned()))
        })
        .collect()
}

/// `$(NAME)` in an argument.
fn expand(arg: &str, env: &[(String, String)]) -> String {
    env.iter().fold(arg.to_owned(), |arg, (name, value)| {
        arg.replace(&format!("$({name})"), value)
    })
}
