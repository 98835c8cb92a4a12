//! What a client cannot do to the API: hold its places, send it much, read it slowly, or reach it under another's name.

use std::{sync::Arc, time::Duration};

use podwarden::api::{
    client::{Client, ClientError, Endpoint},
    published::Published,
    server::{Limits, Listen, Server},
    types::{EventKind, NodeStats},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::Api;

const PROBE: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// What a request over TCP gets: its status, or `None` where the connection ends without one.
async fn ask(api: &Api, request: &[u8]) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(api.tcp).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // Reset or closed: what came before counts.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1)?.parse().unwrap();
    Some((status, answer))
}

fn short(listen: &mut Listen) {
    listen.limits.head = Duration::from_millis(200);
    listen.limits.answer = Duration::from_secs(2);
    listen.limits.write = Duration::from_millis(500);
}

#[tokio::test]
async fn a_thousand_silent_connections_keep_no_probe_from_its_answer() {
    // None of them goes because of the time.
    let api = Api::with(Published::default(), |listen| {
        listen.limits.head = Duration::from_secs(600);
    })
    .await;
    let mut silent = Vec::new();
    for _ in 0..1000 {
        silent.push(TcpStream::connect(api.tcp).await.unwrap());
    }
    let (status, _) = ask(&api, PROBE).await.unwrap();
    assert_eq!(status, 200);
    let mut open = 0;
    for stream in &mut silent {
        let ended = tokio::time::timeout(Duration::ZERO, stream.read_u8()).await;
        open += usize::from(ended.is_err());
    }
    assert!(open <= Limits::default().connections, "{open} are open");
    // The socket has places of its own.
    assert_eq!(api.status("GET", "/healthz").await.0, 200);
}

#[tokio::test]
async fn a_head_that_does_not_end_ends_the_connection() {
    let api = Api::with(Published::default(), short).await;
    let mut stream = TcpStream::connect(api.tcp).await.unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\n")
        .await
        .unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let slowly = tokio::spawn(async move {
        while writer.write_all(b"A: b\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut answer = Vec::new();
    let _ = reader.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    slowly.await.unwrap();

    // Nor may it be long.
    let mut long = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: ".to_vec();
    long.resize(64 << 10, b'a');
    let answer = ask(&api, &long).await;
    assert!(answer.is_none_or(|(status, _)| status == 431));
}

#[tokio::test]
async fn a_body_is_refused_before_it_is_read() {
    let api = Api::start().await;
    let head = "POST /v1/pods HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n";
    let (status, answer) = ask(&api, head.as_bytes()).await.unwrap();
    assert_eq!(status, 413, "{answer}");
    let head = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(ask(&api, head.as_bytes()).await.unwrap().0, 413);

    let mut stream = TcpStream::connect(api.tcp).await.unwrap();
    let head = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = vec![0; 1 << 20];
    let mut sent = 0;
    while sent < 1024 && stream.write_all(&chunk).await.is_ok() {
        sent += 1;
    }
    // What the sockets' buffers took.
    assert!(sent < 64, "{sent} MiB");
}

#[tokio::test]
async fn a_client_that_reads_nothing_loses_its_connection() {
    let api = Api::with(Published::default(), |listen| {
        short(listen);
        listen.reach.api = true;
        listen.limits.followers = 1;
    })
    .await;
    // Far more than the sockets' buffers take.
    api.publish(40_000);
    let mut slow = TcpStream::connect(api.tcp).await.unwrap();
    let get = "GET /v1/pods HTTP/1.1\r\nHost: localhost\r\n\r\n";
    slow.write_all(get.as_bytes()).await.unwrap();
    let whole = api.client().get_bytes("/v1/pods").await.unwrap().len();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut read = Vec::new();
    let _ = slow.read_to_end(&mut read).await;
    assert!(read.len() < whole, "{} of {whole} bytes", read.len());

    // A stream lasts longer than an answer may, and gives its place back when its client reads no more.
    let mut stream = api.client().follow(None).await.unwrap();
    let refused = api.client().follow(None).await.unwrap_err();
    assert!(
        matches!(&refused, ClientError::Refused { status: 503, .. }),
        "{refused}"
    );
    tokio::time::sleep(Duration::from_millis(2500)).await;
    api.happen(7);
    stream.next().await.unwrap().unwrap();
    loop {
        let message = "x".repeat(1 << 20);
        api.published
            .event(String::new(), None, EventKind::Degraded { message });
        match api.client().follow(Some(u64::MAX - 1)).await {
            Ok(_) => break,
            Err(ClientError::Refused { status: 503, .. }) => {}
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn streams_of_events_have_sixteen_places() {
    let api = Api::start().await;
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(api.client().follow(None).await.unwrap());
    }
    let refused = api.client().follow(None).await.unwrap_err();
    assert!(refused.to_string().contains("end one"), "{refused}");
    api.happen(1);
    for stream in &mut streams {
        stream.next().await.unwrap().unwrap();
    }
    // The others are served all the same.
    assert_eq!(api.status("GET", "/healthz").await.0, 200);
    streams.pop();
    while api.client().follow(None).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn tcp_answers_probes_and_scrapes_alone_under_its_own_names() {
    let api = Api::with(Published::default(), |_| {}).await;
    api.publish(1);
    let get = |path: &str, host: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    for (path, host, status) in [
        ("/metrics", "localhost:9595", 200),
        ("/healthz", "127.0.0.1", 200),
        ("/readyz", "[::1]:9595", 503),
        ("/metrics", "rebound.example", 421),
        ("/metrics", "rebound.example:9595", 421),
        ("/metrics", "localhost@rebound.example", 421),
        ("/metrics", "10.0.0.1", 421),
        ("/metrics", "", 421),
        ("http://rebound.example/metrics", "localhost", 421),
        ("/v1/pods", "localhost", 403),
        ("/v1/node", "localhost", 403),
        ("/", "localhost", 403),
        ("/v1/pods", "rebound.example", 421),
    ] {
        let (found, answer) = ask(&api, get(path, host).as_bytes()).await.unwrap();
        assert_eq!(found, status, "{path} {host}: {answer}");
        assert_eq!(
            answer.contains("uid-0"),
            status == 200 && path == "/metrics",
            "{answer}"
        );
    }
    let (status, _) = ask(&api, b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    assert_eq!(status, 421, "no Host");
    // The socket's owner asks under any name.
    assert_eq!(api.status("GET", "/v1/node").await.0, 200);

    let api = Api::with(Published::default(), |listen| {
        listen.reach.api = true;
        listen.reach.hosts = vec!["node-1.example".to_owned()];
    })
    .await;
    api.publish(1);
    let (status, _) = ask(&api, get("/v1/pods", "node-1.example:80").as_bytes())
        .await
        .unwrap();
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_taken_port_is_said_and_opened_once_it_is_free() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("api.sock");
    let listen = Listen {
        tcp: Some(address),
        unix: Some(socket.clone()),
        ..Listen::default()
    };
    let published = Arc::new(Published::default());
    let serving = Server::open(listen)
        .await
        .unwrap()
        .serve(Arc::clone(&published));
    let unix = Client::new(Endpoint::Unix(socket.clone()));
    assert!(unix.get::<NodeStats>("/v1/node").await.is_ok());
    let problem = loop {
        match published.standing().pop() {
            Some(problem) => break problem,
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    assert!(problem.contains(&address.to_string()), "{problem}");
    drop(taken);
    let tcp = Client::new(Endpoint::Tcp(address));
    while tcp.get_bytes("/healthz").await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(published.standing(), [""; 0]);
    serving.end().await.unwrap();
    assert!(!socket.exists());
}
