use super::*;

#[test]
fn the_runtime_is_where_the_operator_says() {
    let socket = |text: &str| parse(text).unwrap().container_runtime_endpoint;
    assert_eq!(socket(""), None);
    let path = Some("/run/containerd/containerd.sock".into());
    for written in [
        "unix:///run/containerd/containerd.sock",
        "/run/containerd/containerd.sock",
    ] {
        assert_eq!(
            socket(&format!("containerRuntimeEndpoint: {written}")),
            path
        );
    }
    let overrides = flags(&["--cri-socket=unix:///run/crio/crio.sock"]);
    let config = Config::load(None, overrides).unwrap();
    let crio = Some("/run/crio/crio.sock".into());
    assert_eq!(config.container_runtime_endpoint, crio);
    let long = format!("unix:///{}", "x".repeat(107));
    for (written, problem) in [
        ("tcp://127.0.0.1:1", "tcp is no unix socket"),
        ("containerd.sock", "not the absolute path of a file"),
        ("unix://run/containerd.sock", "not the absolute path"),
        (&long, "at most 107 bytes"),
    ] {
        let text = error(&format!("containerRuntimeEndpoint: {written}"));
        assert!(text.contains(problem), "{text}");
        assert!(text.contains("containerRuntimeEndpoint is `"), "{text}");
    }
}

#[test]
fn manifests_are_read_from_the_url_that_is_set() {
    assert_eq!(
        parse("httpCheckFrequency: 5s").unwrap().static_pod_url,
        None
    );
    let text = "staticPodURL: https://10.0.0.1:8080/pods.yaml?node=a\n\
                staticPodURLHeader: {X-Token: [one, two]}\nhttpCheckFrequency: 5s";
    let found = parse(text).unwrap().static_pod_url.unwrap();
    assert_eq!(found.url, "https://10.0.0.1:8080/pods.yaml?node=a");
    let headers: Vec<_> = found
        .headers
        .iter()
        .map(|(n, v)| (n.as_str(), v.as_bytes()))
        .collect();
    assert_eq!(headers, [("x-token", &b"one"[..]), ("x-token", b"two")]);
    assert_eq!(found.interval, Duration::from_secs(5));
    for (text, named) in [
        ("staticPodURL: /pods.yaml", "staticPodURL"),
        ("staticPodURL: ftp://a/b", "neither http nor https"),
        ("staticPodURLHeader: {A: [b]}", "staticPodURL is not set"),
        (
            "staticPodURL: https://a/\nstaticPodURLHeader: {\"a b\": [c]}",
            "a b",
        ),
        (
            "staticPodURL: http://a/\nhttpCheckFrequency: 1ms",
            "httpCheckFrequency",
        ),
    ] {
        let error = error(text);
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn secrets_go_over_no_network_in_the_open() {
    const HEADER: &str = "staticPodURLHeader: {Authorization: [Bearer hidden]}";
    for url in [
        "http://pods.example/",
        "http://10.0.0.1/a?b=hidden",
        "http://localhost/",
    ] {
        let error = error(&format!("staticPodURL: {url}\n{HEADER}"));
        assert!(
            error.contains("staticPodURL is `http://") && error.contains("write https"),
            "{error}"
        );
        assert!(
            !error.contains("hidden") && error.contains("agent.yaml"),
            "{error}"
        );
    }
    let error = error("staticPodURL: http://user:hidden@pods.example/a");
    assert!(
        error.contains("user and password") && !error.contains("hidden"),
        "{error}"
    );
    for url in [
        "https://pods.example/",
        "http://127.0.0.1:8080/",
        "http://[::1]/",
    ] {
        parse(&format!("staticPodURL: {url}\n{HEADER}")).unwrap();
    }
    parse("staticPodURL: http://pods.example/a?node=b").unwrap();
}

#[test]
fn the_kubelet_is_asked_where_the_operator_says() {
    assert_eq!(parse("").unwrap().kubelet, None);
    let of = |text: &str| parse(text).unwrap().kubelet.unwrap();
    let pinned = of(
        "nodeName: n1\nkubelet: {url: \"https://127.0.0.1:10250/\", \
                     certificateAuthority: /pki/kubelet.crt, tokenFile: /token}",
    );
    let expected = KubeletConfig {
        url: "https://127.0.0.1:10250".to_owned(),
        token_file: Some("/token".into()),
        certificate_authority: Some("/pki/kubelet.crt".into()),
        server_name: Some("n1".to_owned()),
        interval: Duration::from_secs(5),
    };
    assert_eq!(pinned, expected);
    let named =
        of("kubelet: {url: \"https://n2:10250\", certificateAuthority: /ca, serverName: x}");
    assert_eq!(named.server_name.as_deref(), Some("x"));
    assert_eq!(
        of("kubelet: {url: \"http://[::1]:10255\"}").token_file,
        None
    );
    for (text, named) in [
        (
            "kubelet: {url: \"https://n2:10250\"}",
            "kubelet.certificateAuthority is not set",
        ),
        (
            "kubelet: {url: \"http://127.0.0.1\", interval: 10ms}",
            "kubelet.interval",
        ),
        ("kubelet: {tokenFile: /token}", "kubelet.url is not set"),
        (
            "kubelet: {url: \"http://10.0.0.7:10255\"}",
            "over the network",
        ),
        ("kubelet: {url: n2}", "kubelet.url"),
        (
            "kubelet: {url: \"https://n2/pods\", certificateAuthority: /ca}",
            "not the address of a server",
        ),
        (
            "kubelet: {url: \"https://n2\", certificateAuthority: ca}",
            "kubelet.certificateAuthority",
        ),
    ] {
        let error = error(text);
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn the_api_server_is_where_the_operator_says() {
    let of = |text: &str, overrides: Overrides| {
        let text = format!("{HEAD}{text}");
        Config::parse("agent.yaml", &text, overrides)
            .unwrap()
            .apiserver
    };
    let flag = || flags(&["--kubeconfig=/flag"]);
    let off = flags(&["--no-apiserver"]);
    let kubeconfig = |path: &str| ApiserverConfig::Kubeconfig(path.into());
    assert_eq!(of("", Overrides::default()), ApiserverConfig::Auto);
    assert_eq!(
        of("kubeconfig: /file", Overrides::default()),
        kubeconfig("/file")
    );
    assert_eq!(of("kubeconfig: /file", flag()), kubeconfig("/flag"));
    assert_eq!(of("kubeconfig: /file", off), ApiserverConfig::Off);
}

#[test]
fn nothing_is_kept_until_there_is_a_place_for_it() {
    assert_eq!(parse("").unwrap().state_dir, None);
    let kept = parse("stateDir: /var/lib/podwarden").unwrap();
    assert_eq!(kept.state_dir, Some("/var/lib/podwarden".into()));
    let error = error("stateDir: lib");
    assert!(
        error.contains("stateDir") && error.contains("`lib`"),
        "{error}"
    );
}
