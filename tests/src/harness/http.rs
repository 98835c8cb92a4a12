//! One GET per connection on the agent's socket: enough to read the API without the agent's own
//! client, which is under test itself.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Status code.
    pub(crate) status: u16,
    /// Everything before the empty line, as it came.
    pub(crate) head: String,
    /// Everything after it.
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// `GET path`.
pub(crate) fn get(socket: &Path, path: &str) -> Result<Answer> {
    request(socket, "GET", path).with_context(|| format!("GET {path}"))
}

/// `GET path`, compressed.
pub(crate) fn get_gzip(socket: &Path, path: &str) -> Result<Answer> {
    let answer = asked(socket, "GET", path, "Accept-Encoding: gzip\r\n")
        .with_context(|| format!("GET {path}"))?;
    let head = answer.head.to_lowercase();
    ensure!(head.contains("content-encoding: gzip"), "{path}: {head}");
    Ok(answer)
}

/// `GET path` over TCP, as HTTP/1.0.
pub(crate) fn get_at(address: SocketAddr, path: &str) -> Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    let limit = Some(Duration::from_secs(30));
    stream.set_read_timeout(limit)?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).context("read the answer")?;
    parse(&bytes)
}

/// Any method, without a body. HTTP/1.0: the server closes after the answer and sends no chunks.
pub(crate) fn request(socket: &Path, method: &str, path: &str) -> Result<Answer> {
    asked(socket, method, path, "")
}

/// With these header lines.
fn asked(socket: &Path, method: &str, path: &str, headers: &str) -> Result<Answer> {
    let mut stream =
        UnixStream::connect(socket).with_context(|| format!("connect to {}", socket.display()))?;
    let limit = Some(Duration::from_secs(30));
    stream.set_read_timeout(limit)?;
    stream.set_write_timeout(limit)?;
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\n{headers}\r\n"
    )?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).context("read the answer")?;
    parse(&bytes)
}

/// An answer, taken apart.
pub(super) fn parse(bytes: &[u8]) -> Result<Answer> {
    let end = bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .context("the answer has no end of headers")?;
    let head = std::str::from_utf8(&bytes[..end]).context("the headers are not text")?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .with_context(|| format!("no status in {head:?}"))?;
    Ok(Answer {
        status,
        head: head.to_owned(),
        body: bytes[end + 4..].to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_apart() {
        let answer = parse(b"HTTP/1.0 404 Not Found\r\nA: b\r\n\r\nno\r\n\r\n").unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (404, "no\r\n\r\n"));
        assert!(answer.head.ends_with("A: b"));
        for broken in [
            "",
            "HTTP/1.0 200 OK\r\n",
            "HTTP/1.0\r\n\r\n",
            "HTTP/1.0 x\r\n\r\n",
        ] {
            assert!(parse(broken.as_bytes()).is_err(), "{broken:?}");
        }
    }
}
