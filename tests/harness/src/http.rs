//! One GET request over plain HTTP/1.1, for `/status` and its neighbours.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Status code and body of `GET http://{address}{path}`; `None` when nobody answers in time.
pub fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let limit = Duration::from_secs(3);
    let socket = TcpStream::connect_timeout(&address.parse().ok()?, limit).ok()?;
    socket.set_read_timeout(Some(limit)).ok()?;
    socket.set_write_timeout(Some(limit)).ok()?;
    let mut socket = socket;
    write!(socket, "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some((code, body.to_owned()))
}
