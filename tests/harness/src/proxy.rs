//! A TCP proxy on 127.0.0.1 that delays, throttles, holds, cuts and half-closes connections, and, in front of
//! Kafka, counts requests by their API key, swallows those of chosen keys, and loses one exchange on demand ([`Loss`]).
//!
//! Each connection has two threads, one per direction. What they do is looked up before every chunk, so a
//! change applies to connections that are already open. In front of Kafka a chunk is a whole request or answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Kafka's request keys that tests name.
pub mod api {
    /// Produce.
    pub const PRODUCE: i16 = 0;
    /// Fetch.
    pub const FETCH: i16 = 1;
    /// OffsetCommit.
    pub const OFFSET_COMMIT: i16 = 8;
    /// OffsetFetch.
    pub const OFFSET_FETCH: i16 = 9;
    /// FindCoordinator.
    pub const FIND_COORDINATOR: i16 = 10;
    /// InitProducerId.
    pub const INIT_PRODUCER_ID: i16 = 22;
    /// EndTxn: a transaction is committed or aborted.
    pub const END_TRANSACTION: i16 = 26;
}

/// An exchange of one request and its answer that is to fail, as a client sees it: no answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Which requests: the next one with this API key is lost.
    pub api_key: i16,
    /// Whether the broker gets the request, and so does what it asks for.
    pub is_done: bool,
    /// Whether the client's own repeats of this request are lost in the same way. They are known by their bytes, which
    /// differ in nothing but the number that the client gives them.
    pub with_repeats: bool,
    /// Whether the connection is closed at once; otherwise it stays open, and the client waits.
    pub is_cut: bool,
}

/// How often a held connection looks whether it may go on.
const HOLD: Duration = Duration::from_millis(5);

#[derive(Clone, Default)]
struct Rules {
    delay: Duration,
    bytes_per_second: Option<u64>,
    held: bool,
    refused: bool,
    swallowed: BTreeSet<i16>,
}

#[derive(Default)]
struct State {
    rules: Rules,
    connections: Vec<(TcpStream, TcpStream)>,
    requests: BTreeMap<i16, u64>,
    swallowed: u64,
    loss: Option<Losing>,
    lost: u64,
    lost_repeats: u64,
}

/// A [`Loss`] on its way.
struct Losing {
    loss: Loss,
    /// The request that it took, without its number; `None` until then.
    taken: Option<Vec<u8>>,
}

/// What the two threads of a connection tell one another: the numbers of the requests whose answers are to be lost.
type Unanswered = Arc<Mutex<BTreeSet<[u8; 4]>>>;

struct Shared {
    state: Mutex<State>,
    closed: AtomicBool,
    target: u16,
    kafka: bool,
}

/// A running proxy; everything ends when it is dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    acceptor: Option<JoinHandle<()>>,
    lease: Option<Arc<AtomicBool>>,
}

impl Proxy {
    /// A proxy on a free port in front of `127.0.0.1:target`, whatever is spoken there.
    pub fn to(target: u16) -> Proxy {
        Proxy::start(crate::ports::free(), target, false, None)
    }

    /// A proxy on `port` in front of a listener of a Kafka broker; `lease` is set to false at its end.
    pub(crate) fn for_kafka(port: u16, target: u16, lease: Arc<AtomicBool>) -> Proxy {
        Proxy::start(port, target, true, Some(lease))
    }

    fn start(port: u16, target: u16, kafka: bool, lease: Option<Arc<AtomicBool>>) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", port))
            .unwrap_or_else(|e| panic!("listen on 127.0.0.1:{port}: {e}"));
        let shared =
            Arc::new(Shared { state: Mutex::default(), closed: AtomicBool::new(false), target, kafka });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || accept(&listener, &accepting))
            .unwrap_or_else(|e| panic!("start the proxy's thread: {e}"));
        Proxy { shared, port, acceptor: Some(acceptor), lease }
    }

    /// `127.0.0.1:PORT` of the proxy.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Holds every chunk back for this long, in both directions.
    pub fn delay(&self, delay: Duration) {
        self.state().rules.delay = delay;
    }

    /// Lets at most this many bytes a second pass in each direction of each connection; `None` lifts it.
    pub fn throttle(&self, bytes_per_second: Option<u64>) {
        self.state().rules.bytes_per_second = bytes_per_second;
    }

    /// A black hole: connections stay open and nothing passes any more.
    pub fn hold(&self) {
        self.state().rules.held = true;
    }

    /// Closes all connections; new ones are closed as soon as they come.
    pub fn cut(&self) {
        let mut state = self.state();
        state.rules.refused = true;
        close_all(&mut state);
    }

    /// Closes the connections that are open now; new ones are let in.
    pub fn reset(&self) {
        close_all(&mut self.state());
    }

    /// Tells the clients of the connections that are open now that nothing more will come, and goes on taking what they send.
    pub fn half_close(&self) {
        for (client, _) in &self.state().connections {
            let _already_closed = client.shutdown(Shutdown::Write);
        }
    }

    /// Swallows Kafka requests with this API key: the client never gets an answer.
    pub fn swallow(&self, api_key: i16) {
        self.state().rules.swallowed.insert(api_key);
    }

    /// Loses the next exchange that `loss` is about, and then no other; a loss that was asked for before is over.
    pub fn lose(&self, loss: Loss) {
        self.state().loss = Some(Losing { loss, taken: None });
    }

    /// How many exchanges were lost, the client's repeats of one not counted.
    pub fn lost(&self) -> u64 {
        self.state().lost
    }

    /// How many repeats of lost requests were lost too.
    pub fn lost_repeats(&self) -> u64 {
        self.state().lost_repeats
    }

    /// Lets everything pass again.
    pub fn heal(&self) {
        let mut state = self.state();
        state.rules = Rules::default();
        state.loss = None;
    }

    /// How many Kafka requests with this API key came by, those that were swallowed included.
    pub fn requests(&self, api_key: i16) -> u64 {
        self.state().requests.get(&api_key).copied().unwrap_or(0)
    }

    /// How many Kafka requests were swallowed.
    pub fn swallowed(&self) -> u64 {
        self.state().swallowed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        close_all(&mut self.state());
        // Wakes the acceptor, which then sees that it is over.
        let _nobody_listens = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _panicked = acceptor.join();
        }
        if let Some(lease) = &self.lease {
            lease.store(false, Ordering::Release);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn rules(&self) -> Rules {
        self.state().rules.clone()
    }
}

/// Both sides hear that the connection is over.
fn cut(one: &TcpStream, other: &TcpStream) -> io::Result<()> {
    let _already_closed = one.shutdown(Shutdown::Both);
    other.shutdown(Shutdown::Both)
}

fn close_all(state: &mut State) {
    for (client, server) in state.connections.drain(..) {
        let _already_closed = cut(&client, &server);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.closed.load(Ordering::Acquire) {
            return;
        }
        let Ok(client) = client else { continue };
        if shared.rules().refused {
            continue;
        }
        // A target that is down looks to the client like a connection that closes at once.
        let Ok(server) = TcpStream::connect(("127.0.0.1", shared.target)) else { continue };
        if let Err(error) = connect(shared, client, server) {
            panic!("proxy a connection to port {}: {error}", shared.target);
        }
    }
}

fn connect(shared: &Arc<Shared>, client: TcpStream, server: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let up = (client.try_clone()?, server.try_clone()?);
    let down = (server.try_clone()?, client.try_clone()?);
    shared.state().connections.push((client, server));
    let unanswered = Unanswered::default();
    for (name, (from, to), is_up) in [("proxy-up", up, true), ("proxy-down", down, false)] {
        let (shared, unanswered) = (Arc::clone(shared), Arc::clone(&unanswered));
        std::thread::Builder::new().name(name.into()).spawn(move || {
            // An error is a closed connection: the other side learns of it in the same way.
            let _closed = match (shared.kafka, is_up) {
                (false, _) => pump(&shared, &from, &to),
                (true, true) => pump_requests(&shared, &unanswered, &from, &to),
                (true, false) => pump_answers(&shared, &unanswered, &from, &to),
            };
            let _already_closed = to.shutdown(Shutdown::Write);
        })?;
    }
    Ok(())
}

fn pump(shared: &Shared, mut from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut chunk)?;
        if length == 0 {
            return Ok(());
        }
        forward(shared, &chunk[..length], to)?;
    }
}

/// Requests and answers are framed: four bytes of length, then as many bytes.
fn read_frame(mut from: &TcpStream, frame: &mut Vec<u8>) -> io::Result<()> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    frame.clear();
    frame.extend_from_slice(&length);
    let wanted = u64::from(u32::from_be_bytes(length));
    let found = from.take(wanted).read_to_end(frame)?;
    if found as u64 == wanted { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// What becomes of a request.
enum Fate {
    Passes,
    IsSwallowed,
    IsCut,
}

/// A request begins with its API key and version, two bytes each, and its number.
fn pump_requests(
    shared: &Shared,
    unanswered: &Unanswered,
    from: &TcpStream,
    to: &TcpStream,
) -> io::Result<()> {
    let mut frame = Vec::new();
    loop {
        read_frame(from, &mut frame)?;
        let fate = match frame.get(4..12) {
            Some(&[high, low, _, _, a, b, c, d]) => {
                decide(shared, unanswered, i16::from_be_bytes([high, low]), [a, b, c, d], &frame[12..])
            }
            _ => Fate::Passes,
        };
        match fate {
            Fate::Passes => forward(shared, &frame, to)?,
            Fate::IsSwallowed => {}
            Fate::IsCut => {
                return cut(from, to);
            }
        }
    }
}

fn decide(shared: &Shared, unanswered: &Unanswered, key: i16, number: [u8; 4], rest: &[u8]) -> Fate {
    let mut guard = shared.state();
    let state = &mut *guard;
    *state.requests.entry(key).or_default() += 1;
    if state.rules.swallowed.contains(&key) {
        state.swallowed += 1;
        return Fate::IsSwallowed;
    }
    let Some(losing) = state.loss.as_mut().filter(|losing| losing.loss.api_key == key) else {
        return Fate::Passes;
    };
    let loss = losing.loss;
    match &losing.taken {
        None => {
            losing.taken = Some(rest.to_vec());
            state.lost += 1;
        }
        Some(taken) if loss.with_repeats && taken == rest => state.lost_repeats += 1,
        Some(_) => return Fate::Passes,
    }
    if loss.is_done {
        unanswered.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(number);
        return Fate::Passes;
    }
    if loss.is_cut { Fate::IsCut } else { Fate::IsSwallowed }
}

/// An answer begins with the number of its request.
fn pump_answers(
    shared: &Shared,
    unanswered: &Unanswered,
    from: &TcpStream,
    to: &TcpStream,
) -> io::Result<()> {
    let mut frame = Vec::new();
    loop {
        read_frame(from, &mut frame)?;
        let number = frame.get(4..8).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        let is_lost = number.is_some_and(|number| {
            unanswered.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(&number)
        });
        if !is_lost {
            forward(shared, &frame, to)?;
        } else if shared.state().loss.as_ref().is_some_and(|losing| losing.loss.is_cut) {
            return cut(from, to);
        }
    }
}

fn forward(shared: &Shared, bytes: &[u8], mut to: &TcpStream) -> io::Result<()> {
    let mut rules = shared.rules();
    std::thread::sleep(rules.delay);
    while rules.held {
        if shared.closed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        std::thread::sleep(HOLD);
        rules = shared.rules();
    }
    if let Some(rate) = rules.bytes_per_second {
        std::thread::sleep(Duration::from_secs_f64(bytes.len() as f64 / rate.max(1) as f64));
    }
    to.write_all(bytes)
}
