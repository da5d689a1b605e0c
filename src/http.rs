//! The HTTP port: `/livez`, `/readyz`, `/metrics` and `/status`.
//!
//! One thread serves it. It only reads what the workers publish once an epoch, so a slow client never holds
//! a worker, and `/livez` never depends on Kafka: it answers as long as the process runs.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tiny_http::{Header, Method, Request, Response, Server};

/// How long the server waits for a request before it looks whether it is to end.
const POLL: Duration = Duration::from_millis(200);

/// What the endpoints show. Each call renders the present state.
pub(crate) trait Probe: Send + Sync + 'static {
    /// `Ok` when the cluster stands and records flow; else what is being waited for.
    fn ready(&self) -> Result<(), String>;
    /// The metrics in Prometheus' text format.
    fn metrics(&self) -> String;
    /// The status as JSON.
    fn status(&self) -> String;
}

/// The running server; it ends when this is dropped.
pub(crate) struct HttpServer {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Binds `address` and serves `probe` on a thread of its own.
    pub(crate) fn start(address: &str, probe: Arc<dyn Probe>) -> io::Result<HttpServer> {
        let server = Server::http(address).map_err(io::Error::other)?;
        let bound = server.server_addr().to_ip().ok_or_else(|| io::Error::other("not an IP address"))?;
        let ended = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&ended);
        let thread = std::thread::Builder::new().name("http".into()).spawn(move || {
            while !stop.load(Ordering::Acquire) {
                match server.recv_timeout(POLL) {
                    Ok(Some(request)) => answer(request, probe.as_ref()),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::warn!(%error, "the http port failed to accept a connection");
                    }
                }
            }
        })?;
        Ok(HttpServer { address: bound, ended, thread: Some(thread) })
    }

    /// Where the server listens; with port 0 asked for, the port that was found.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the http thread panicked");
        }
    }
}

fn answer(request: Request, probe: &dyn Probe) {
    let path = request.url().split('?').next().unwrap_or_default();
    let (status, kind, body) = if !matches!(request.method(), Method::Get | Method::Head) {
        (405, "text/plain; charset=utf-8", "only GET is served here\n".to_owned())
    } else {
        match path {
            "/livez" => (200, "text/plain; charset=utf-8", "ok\n".to_owned()),
            "/readyz" => match probe.ready() {
                Ok(()) => (200, "text/plain; charset=utf-8", "ok\n".to_owned()),
                Err(reason) => (503, "text/plain; charset=utf-8", format!("{reason}\n")),
            },
            "/metrics" => {
                (200, "application/openmetrics-text; version=1.0.0; charset=utf-8", probe.metrics())
            }
            "/status" => (200, "application/json", probe.status()),
            _ => (
                404,
                "text/plain; charset=utf-8",
                "not found; there are /livez, /readyz, /metrics and /status\n".to_owned(),
            ),
        }
    };
    let header = Header::from_bytes("Content-Type", kind).expect("a constant header is well formed");
    let response = Response::from_string(body).with_status_code(status).with_header(header);
    if let Err(error) = request.respond(response) {
        tracing::debug!(%error, "an http client went away before its answer");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    struct Fixed;

    impl Probe for Fixed {
        fn ready(&self) -> Result<(), String> {
            Err("waiting for process 1".into())
        }
        fn metrics(&self) -> String {
            "# EOF\n".into()
        }
        fn status(&self) -> String {
            "{}".into()
        }
    }

    fn get(address: SocketAddr, path: &str) -> String {
        let mut socket = std::net::TcpStream::connect(address).expect("the server listens");
        write!(socket, "GET {path} HTTP/1.0\r\n\r\n").expect("a request can be written");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer comes");
        answer
    }

    #[test]
    fn each_endpoint_answers_with_its_own_status() {
        let server = HttpServer::start("127.0.0.1:0", Arc::new(Fixed)).expect("a free port");
        let address = server.address();
        assert!(get(address, "/livez").starts_with("HTTP/1.0 200"));
        let ready = get(address, "/readyz");
        assert!(ready.starts_with("HTTP/1.0 503") && ready.contains("waiting for process 1"));
        assert!(get(address, "/metrics").contains("# EOF"));
        assert!(get(address, "/status?x=1").ends_with("{}"));
        assert!(get(address, "/nothing").starts_with("HTTP/1.0 404"));
    }
}
