//! A client without a library: requests as text.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::ApiServer;

pub(super) const SHOP: &str = "/api/v1/namespaces/shop/pods";

pub(super) fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"containers": [{"name": "app"}]},
    })
}

/// Sends a request; the connection ends with the answer.
pub(super) fn send(
    server: &ApiServer,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(server.server.address()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    BufReader::new(stream)
}

pub(super) fn head(reader: &mut BufReader<TcpStream>) -> (u16, String) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, head)
}

pub(super) fn ask(
    server: &ApiServer,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, Value) {
    let mut reader = send(server, method, path, headers, body);
    let (code, _) = head(&mut reader);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    (code, serde_json::from_str(&text).unwrap())
}

pub(super) fn get(server: &ApiServer, path: &str) -> (u16, Value) {
    ask(server, "GET", path, "", "")
}

/// Reads a watch to its end: whole lines, and whether the answer ended as it should.
pub(super) fn watch(server: &ApiServer, query: &str) -> (Vec<Value>, bool) {
    let mut reader = send(
        server,
        "GET",
        &format!("/api/v1/pods?watch=true&{query}"),
        "",
        "",
    );
    assert_eq!(head(&mut reader).0, 200);
    let mut text = String::new();
    loop {
        let mut size = String::new();
        if reader.read_line(&mut size).unwrap_or(0) == 0 {
            return (lines(&text), false);
        }
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).unwrap();
        if size == 0 {
            return (lines(&text), true);
        }
        text.push_str(std::str::from_utf8(&chunk[..size]).unwrap());
    }
}

pub(super) fn lines(text: &str) -> Vec<Value> {
    let whole = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    whole
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub(super) fn kinds(lines: &[Value]) -> Vec<&str> {
    lines
        .iter()
        .map(|line| line["type"].as_str().unwrap())
        .collect()
}
