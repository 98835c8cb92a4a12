//! Listeners: what they refuse, replace and leave behind.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::Path,
};

use podwarden::api::server::{HttpError, Listen, Listeners};

use crate::support::Api;

#[tokio::test]
async fn shutdown_ends_streams_and_removes_the_socket() {
    let api = Api::start().await;
    let mode = fs::metadata(&api.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = api.client().follow(None).await.unwrap();
    let socket = api.stop().await;
    assert!(stream.next().await.is_none());
    assert!(!socket.exists());
    assert!(!socket.parent().unwrap().exists(), "made by the server");
}

fn listen_on(path: &Path) -> Listen {
    Listen {
        unix: Some(path.to_owned()),
        ..Listen::default()
    }
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_anything_else_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let stale = dir.path().join("stale");
    drop(UnixListener::bind(&stale).unwrap());
    assert!(stale.exists());
    drop(Listeners::open(&listen_on(&stale)).await.unwrap());
    assert!(!stale.exists() && dir.path().exists());

    let live = dir.path().join("live");
    let _listener = UnixListener::bind(&live).unwrap();
    let refused = Listeners::open(&listen_on(&live)).await.unwrap_err();
    assert!(
        matches!(&refused, HttpError::InUse { path } if *path == live),
        "{refused}"
    );
    assert!(live.exists());

    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let refused = Listeners::open(&listen_on(&file)).await.unwrap_err();
    assert!(
        matches!(&refused, HttpError::NotASocket { path } if *path == file),
        "{refused}"
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");

    let long = dir.path().join("x".repeat(200));
    let refused = Listeners::open(&listen_on(&long)).await.unwrap_err();
    assert!(refused.to_string().contains(&"x".repeat(200)), "{refused}");
}

#[tokio::test]
async fn a_socket_that_another_agent_took_over_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let first = Listeners::open(&listen_on(&path)).await.unwrap();
    fs::remove_file(&path).unwrap();
    let _second = UnixListener::bind(&path).unwrap();
    drop(first);
    assert!(path.exists());
}

#[tokio::test]
async fn other_machines_are_let_in_only_on_request() {
    let mut listen = Listen {
        tcp: Some("0.0.0.0:0".parse().unwrap()),
        ..Listen::default()
    };
    let refused = Listeners::open(&listen).await.unwrap_err();
    assert!(matches!(refused, HttpError::NotLoopback { .. }));
    assert!(refused.to_string().contains("127.0.0.1:0"), "{refused}");
    // The rule alone is tried: nothing is opened to the network.
    listen.tcp = Some("[::1]:0".parse().unwrap());
    Listeners::open(&listen).await.unwrap();
}
