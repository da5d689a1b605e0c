//! Sockets between processes: connecting, options, and driving a handshake over one.

use crate::handshake::{Action, Event, Failure, Handshake, Hello, Refusal};
use crate::spec::Address;
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Longest wait for one connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long, and for how many bytes, a refused caller may go on talking before it is cut off. Closing a
/// socket with unread bytes would destroy the refusal on its way.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 64 << 10;

/// Sets what every connection between processes has: no delay, keep-alive, and a limit to unacknowledged data.
pub(crate) fn prepare(stream: &TcpStream, peer_timeout: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let second = Duration::from_secs(1);
    let keepalive = TcpKeepalive::new()
        .with_time((peer_timeout / 2).max(second))
        .with_interval((peer_timeout / 5).max(second));
    #[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
    let keepalive = keepalive.with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(peer_timeout))?;
    Ok(())
}

/// Resolves the name anew and connects to the first of its addresses that answers.
pub(crate) fn connect(address: &Address, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for remote in (address.host.as_str(), address.port).to_socket_addrs()? {
        match connect_to(remote, deadline) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to one address.
pub(crate) fn connect_to(remote: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    let rest = deadline.saturating_duration_since(Instant::now()).min(CONNECT_TIMEOUT);
    if rest.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let stream = TcpStream::connect_timeout(&remote, rest)?;
    // A connection to a free port of the own host can meet itself, and would then hold the port.
    if stream.local_addr()? == remote {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

/// Runs a handshake over `stream` until it is over or `deadline` passes.
pub(crate) fn drive(
    stream: &TcpStream,
    mut handshake: Handshake,
    first: Vec<Action>,
    deadline: Instant,
    seat: &mut dyn FnMut(&Hello) -> Result<(), Refusal>,
) -> Result<Hello, Failure> {
    let mut actions: Vec<Action> = first;
    let mut said = false;
    loop {
        let mut answer = None;
        let mut broken = None;
        for action in std::mem::take(&mut actions) {
            match action {
                Action::Send(bytes) => {
                    said = true;
                    if let Err(error) = send(stream, &bytes, deadline) {
                        broken = Some(format!("broke off ({error})"));
                    }
                }
                Action::Admit(hello) => answer = Some(seat(&hello)),
                Action::Established(hello) => {
                    return match broken {
                        None => Ok(hello),
                        Some(how) => Err(Failure::Stranger(how)),
                    };
                }
                Action::Fail(failure) => {
                    if said && !matches!(failure, Failure::Stranger(_)) {
                        linger(stream);
                    }
                    return Err(failure);
                }
            }
        }
        actions = if let Some(answer) = answer {
            handshake.on(Event::Admit(answer))
        } else if let Some(how) = broken {
            handshake.on(Event::Closed(how))
        } else {
            let mut buffer = [0; 256];
            let wants = handshake.wants().min(buffer.len());
            match receive(stream, &mut buffer[..wants], deadline) {
                Ok(0) => handshake.on(Event::Closed("closed the connection".into())),
                Ok(read) => handshake.on(Event::Bytes(&buffer[..read])),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => handshake.on(Event::Expired),
                Err(error) => handshake.on(Event::Closed(format!("broke off ({error})"))),
            }
        };
    }
}

fn send(mut stream: &TcpStream, bytes: &[u8], deadline: Instant) -> io::Result<()> {
    stream.set_write_timeout(Some(rest_until(deadline)?))?;
    stream.write_all(bytes)
}

fn receive(mut stream: &TcpStream, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        stream.set_read_timeout(Some(rest_until(deadline)?))?;
        match stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            other => return other,
        }
    }
}

fn rest_until(deadline: Instant) -> io::Result<Duration> {
    let rest = deadline.saturating_duration_since(Instant::now());
    if rest.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(rest) }
}

fn linger(stream: &TcpStream) {
    // An error here means that the other side is gone already, which is the aim.
    if stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let deadline = Instant::now() + LINGER;
    let mut buffer = [0; 1024];
    let mut bytes = 0;
    while bytes < LINGER_BYTES {
        match receive(stream, &mut buffer, deadline) {
            Ok(0) | Err(_) => return,
            Ok(read) => bytes += read,
        }
    }
}
