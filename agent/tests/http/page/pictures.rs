//! The pictures of the README: the page of a real agent, while it evicts.
//!
//! To take them anew, start `cargo xtask demo --headless`, and before it evicts, with the socket that it names:
//! `UPDATE_DOCS=1 PODWARDEN_DEMO=SOCKET cargo test -p podwarden --test http pictures`.

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::json;
use tokio::net::{TcpListener, UnixStream};

use crate::chromium::Page;

const NAMES: [&str; 4] = ["light", "dark", "record", "phone"];
const README: &str = include_str!("../../../../README.md");

/// Each is loaded with the README.
const MOST_BYTES: usize = 80 << 10;

fn file(name: &str) -> PathBuf {
    let images = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/docs/images");
    images.join(format!("page-{name}.webp"))
}

#[tokio::test]
async fn pictures_of_the_page_are_in_the_readme_and_small() {
    if std::env::var_os("UPDATE_DOCS").is_some()
        && let Some(socket) = std::env::var_os("PODWARDEN_DEMO")
    {
        take(socket.into()).await;
    }
    for name in NAMES {
        let bytes = fs::read(file(name)).unwrap();
        assert!(
            bytes.starts_with(b"RIFF") && bytes[8..].starts_with(b"WEBP"),
            "{name}"
        );
        assert!(bytes.len() < MOST_BYTES, "{name}: {} bytes", bytes.len());
        let path = format!("deploy/docs/images/page-{name}.webp");
        assert!(README.contains(&path), "{path}");
    }
}

async fn take(socket: PathBuf) {
    let mut page = Page::open().await.expect("Chromium");
    // The page is on the agent's socket alone; a browser takes TCP.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut agent = UnixStream::connect(&socket).await.unwrap();
            tokio::spawn(
                async move { tokio::io::copy_bidirectional(&mut client, &mut agent).await },
            );
        }
    });
    page.resize(1180, 960).await;
    page.call("Page.navigate", json!({"url": url})).await;
    page.until("document.querySelector('#list li.eviction') !== null")
        .await;
    for scheme in ["light", "dark"] {
        page.prefer(scheme).await;
        keep(&mut page, scheme).await;
    }
    // It is there once the memory is back.
    page.until(
        "fetch('/v1/events/' + document.querySelector('#list li.eviction').dataset.id)
            .then((answer) => answer.json()).then((event) => 'flightRecord' in event)",
    )
    .await;
    page.value("document.querySelector('#list li.eviction button').click()")
        .await;
    page.until("document.querySelector('#details .record polyline') !== null")
        .await;
    keep(&mut page, "record").await;
    page.press("Escape", "").await;
    page.prefer("light").await;
    page.resize(390, 780).await;
    keep(&mut page, "phone").await;
}

async fn keep(page: &mut Page, name: &str) {
    let how = json!({"format": "webp", "quality": 40});
    let shot = page.call("Page.captureScreenshot", how).await;
    fs::create_dir_all(file(name).parent().unwrap()).unwrap();
    let mut decode = Command::new("base64")
        .arg("--decode")
        .stdin(Stdio::piped())
        .stdout(fs::File::create(file(name)).unwrap())
        .spawn()
        .unwrap();
    let mut input = decode.stdin.take().unwrap();
    input
        .write_all(shot["data"].as_str().unwrap().as_bytes())
        .unwrap();
    drop(input);
    assert!(decode.wait().unwrap().success());
}
