//! A headless Chromium, driven over the DevTools protocol by a pipe: JSON messages that end in a zero byte.
//!
//! The crates for that protocol bring a generated type for each of its messages; a test needs ten of them.

use std::{process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// Programs of Debian's packages `chromium-headless-shell` and `chromium`, and of other systems.
const PROGRAMS: [&str; 4] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
];

/// Longest wait for an answer or a state; only a test that fails waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// One page of a browser of its own.
pub(crate) struct Page {
    _browser: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: Option<String>,
    sent: u64,
    /// Exceptions of scripts, and what the browser refused.
    pub(crate) problems: Vec<String>,
    /// Addresses that the page asked for.
    pub(crate) requested: Vec<String>,
    _profile: tempfile::TempDir,
}

fn program() -> Option<String> {
    if let Ok(program) = std::env::var("PODWARDEN_CHROMIUM") {
        return Some(program);
    }
    let path = std::env::var_os("PATH")?;
    let there = |name: &&str| std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    PROGRAMS.into_iter().find(there).map(str::to_owned)
}

impl Page {
    /// An empty page; `None` where there is no Chromium.
    pub(crate) async fn open() -> Option<Self> {
        let program = program()?;
        let profile = tempfile::tempdir().unwrap();
        // The protocol is on descriptors 3 and 4.
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh"])
            .args([program.as_str(), "--headless", "--remote-debugging-pipe"])
            .args(["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-extensions"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        // Chromium's sandbox refuses root.
        if nix::unistd::geteuid().is_root() {
            command.arg("--no-sandbox");
        }
        let mut browser = command.spawn().unwrap();
        let input = browser.stdin.take().unwrap();
        let output = BufReader::new(browser.stdout.take().unwrap());
        let mut page = Self {
            _browser: browser,
            input,
            output,
            session: None,
            sent: 0,
            problems: Vec::new(),
            requested: Vec::new(),
            _profile: profile,
        };
        let target = json!({"url": "about:blank"});
        let target = page.call("Target.createTarget", target).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = page.call("Target.attachToTarget", attach).await;
        page.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), json!({})).await;
        }
        Some(page)
    }

    /// The result of a method.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.input.write_all(&bytes).await.unwrap();
        let answered = async {
            loop {
                let mut message = self.receive().await;
                if message["id"] == self.sent {
                    assert!(message.get("error").is_none(), "{method}: {message}");
                    return message["result"].take();
                }
                self.note(&message);
            }
        };
        let answered = tokio::time::timeout(PATIENCE, answered).await;
        answered.unwrap_or_else(|_| panic!("{method}: no answer"))
    }

    async fn receive(&mut self) -> Value {
        let mut bytes = Vec::new();
        let read = self.output.read_until(0, &mut bytes).await.unwrap();
        assert!(read > 0, "Chromium has ended");
        bytes.pop();
        serde_json::from_slice(&bytes).unwrap()
    }

    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.problems.push(params.to_string()),
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.problems.push(params["entry"].to_string());
            }
            Some("Network.requestWillBeSent") => {
                let url = params["request"]["url"].as_str().unwrap_or_default();
                self.requested.push(url.to_owned());
            }
            _ => {}
        }
    }

    /// The value of a JavaScript expression; a promise's once it is there.
    pub(crate) async fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut result = self.call("Runtime.evaluate", params).await;
        assert!(
            result.get("exceptionDetails").is_none(),
            "{expression}: {result}"
        );
        result["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&mut self, expression: &str) {
        let begun = std::time::Instant::now();
        while self.value(expression).await != true {
            assert!(
                begun.elapsed() < PATIENCE,
                "never true: {expression}\n{}\n{:?}",
                self.value("document.body.innerText").await,
                self.problems
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Presses and releases a key, such as `Escape`.
    pub(crate) async fn press(&mut self, key: &str, text: &str) {
        let code = match key {
            "Escape" => 27,
            "Enter" => 13,
            "Tab" => 9,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let mut params =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                params["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", params).await;
        }
    }

    /// Width and height in CSS pixels.
    pub(crate) async fn resize(&mut self, width: u32, height: u32) {
        let params =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", params)
            .await;
    }

    /// `light` or `dark`.
    pub(crate) async fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let params = json!({"features": features});
        self.call("Emulation.setEmulatedMedia", params).await;
    }

    /// Names of roles in the accessibility tree that have no name although a screen reader announces them,
    /// and the roles that there are.
    pub(crate) async fn roles(&mut self) -> (Vec<String>, Vec<String>) {
        const NAMED: [&str; 8] = [
            "button",
            "link",
            "searchbox",
            "combobox",
            "checkbox",
            "dialog",
            "region",
            "img",
        ];
        let tree = self.call("Accessibility.getFullAXTree", json!({})).await;
        let mut nameless = Vec::new();
        let mut roles = Vec::new();
        for node in tree["nodes"].as_array().unwrap() {
            if node["ignored"] == true {
                continue;
            }
            let role = node["role"]["value"].as_str().unwrap_or_default();
            let name = node["name"]["value"].as_str().unwrap_or_default();
            if NAMED.contains(&role) && name.trim().is_empty() {
                nameless.push(node.to_string());
            }
            roles.push(role.to_owned());
        }
        (nameless, roles)
    }

    /// A PNG of what is visible, base64.
    pub(crate) async fn screenshot(&mut self) -> String {
        let shot = self.call("Page.captureScreenshot", json!({})).await;
        shot["data"].as_str().unwrap_or_default().to_owned()
    }
}
