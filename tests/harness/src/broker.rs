//! A real Kafka broker: one node in KRaft mode, on free ports of 127.0.0.1, with a data folder below `target/`.
//!
//! [`Broker::shared`] is started once per test process and used by every test that does not disturb it; a test
//! that stops, freezes or reconfigures a broker starts its own with [`Broker::start`]. Both are of the newest line; those
//! of the other one come from [`Line`].

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::process::Signal;

use crate::kafka::Kafka;
use crate::line::Line;
use crate::proxy::Proxy;
use crate::scratch::target_folder;
use crate::{ports, process, wait};

/// How many listeners behind a proxy the broker has; each is one [`Broker::proxy`] at a time.
const PROXIED_LISTENERS: usize = 4;

/// A broker takes about 3 s to accept clients on an idle machine.
const START_DEADLINE: Duration = Duration::from_secs(90);

/// How much of the log of a test's own broker a failing test prints.
const SHOWN_LINES: usize = 20;

/// A listener whose advertised address is a proxy's, so that a client that comes in by the proxy stays on it.
struct ProxiedListener {
    behind: u16,
    advertised: u16,
    taken: Arc<AtomicBool>,
}

/// A listener beside the one in plaintext; the brokers do not use it among themselves.
pub(crate) struct Listener {
    /// A name in capitals.
    pub(crate) name: String,
    /// `PLAINTEXT`, `SASL_SSL` …
    pub(crate) protocol: &'static str,
    /// Its port on 127.0.0.1.
    pub(crate) port: u16,
    /// What clients are told: `host:port`.
    pub(crate) advertised: String,
}

/// What a broker of a test's own has beside the usual.
#[derive(Default)]
pub(crate) struct Extras<'a> {
    /// Which line of Kafka it is of.
    pub(crate) line: Line,
    /// Further lines for its `server.properties`.
    pub(crate) properties: &'a [(&'a str, &'a str)],
    /// Further listeners.
    pub(crate) listeners: Vec<Listener>,
    /// Further arguments of the command that formats its folder.
    pub(crate) format: &'a [&'a str],
    /// The cluster that it is a part of; alone if there is none.
    pub(crate) quorum: Option<Quorum>,
}

/// The cluster that a broker is a part of, and which one it is.
#[derive(Clone)]
pub(crate) struct Quorum {
    /// From 0; its node id is one more.
    pub(crate) index: usize,
    /// The ports of all controllers.
    pub(crate) controllers: Vec<u16>,
    /// As Kafka writes it.
    pub(crate) cluster_id: String,
}

impl Quorum {
    fn alone() -> Quorum {
        Quorum { index: 0, controllers: vec![ports::free()], cluster_id: random_cluster_id() }
    }
}

/// A Kafka broker of this process; ends with it.
pub struct Broker {
    line: Line,
    kafka: Kafka,
    folder: PathBuf,
    child: Mutex<Option<Child>>,
    proxied: Vec<ProxiedListener>,
    own: bool,
}

impl Broker {
    /// The broker that all tests of this process share.
    pub fn shared() -> &'static Broker {
        Line::Newest.shared()
    }

    /// Starts a broker of the caller's own with further lines for its `server.properties`.
    pub fn start(properties: &[(&str, &str)]) -> Broker {
        Line::Newest.start(properties)
    }

    /// One that somebody else has started.
    pub(crate) fn running(kafka: Kafka) -> Broker {
        kafka.wait_ready(START_DEADLINE);
        Broker {
            line: Line::Newest,
            kafka,
            folder: PathBuf::new(),
            child: Mutex::new(None),
            proxied: Vec::new(),
            own: false,
        }
    }

    pub(crate) fn start_with(extras: Extras<'_>) -> Broker {
        let broker = Broker::prepare(extras);
        broker.resume();
        broker
    }

    /// A broker whose folder is ready and that does not run yet.
    pub(crate) fn prepare(extras: Extras<'_>) -> Broker {
        let lib = extras.line.jars();
        remove_leftovers();
        let port = ports::free();
        let quorum = extras.quorum.unwrap_or_else(Quorum::alone);
        let folder = data_root().join(format!("{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("create {}: {e}", folder.display()));
        let proxied: Vec<ProxiedListener> = (0..PROXIED_LISTENERS)
            .map(|_| ProxiedListener {
                behind: ports::free(),
                advertised: ports::free(),
                taken: Arc::default(),
            })
            .collect();
        let behind_proxies = proxied.iter().enumerate().map(|(index, listener)| Listener {
            name: format!("PROXIED{index}"),
            protocol: "PLAINTEXT",
            port: listener.behind,
            advertised: format!("127.0.0.1:{}", listener.advertised),
        });
        let listeners: Vec<Listener> = behind_proxies.chain(extras.listeners).collect();
        let config = server_properties(&folder, port, &quorum, &listeners, extras.properties);
        let file = folder.join("server.properties");
        std::fs::write(&file, config).unwrap_or_else(|e| panic!("write {}: {e}", file.display()));
        format_storage(&lib, &folder, &file, &quorum.cluster_id, extras.format);
        Broker {
            line: extras.line,
            kafka: Kafka::at(&format!("127.0.0.1:{port}")),
            folder,
            child: Mutex::new(None),
            proxied,
            own: true,
        }
    }

    /// The client's side: topics, offsets, records.
    pub fn kafka(&self) -> &Kafka {
        &self.kafka
    }

    /// Starts the broker again on its data and ports after [`Broker::stop`] or [`Broker::kill`], and waits until it serves.
    pub fn resume(&self) {
        self.resume_without_waiting();
        self.kafka.wait_ready(START_DEADLINE);
    }

    /// Like [`Broker::resume`], and returns at once.
    pub fn resume_without_waiting(&self) {
        let mut child = self.child();
        assert!(child.is_none(), "the broker runs already");
        let log = self.folder.join("broker.log");
        let out = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap_or_else(|e| panic!("open {}: {e}", log.display()));
        let err = out.try_clone().unwrap_or_else(|e| panic!("open {}: {e}", log.display()));
        let mut command = java(&self.line.jars());
        command
            .arg("kafka.Kafka")
            .arg(self.folder.join("server.properties"))
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err);
        *child = Some(process::spawn(command).unwrap_or_else(|e| panic!("start java for the broker: {e}")));
    }

    /// Ends the broker in an orderly way (SIGTERM) and waits for its end.
    pub fn stop(&self) {
        self.end(Signal::TERM);
    }

    /// Ends the broker with SIGKILL.
    pub fn kill(&self) {
        self.end(Signal::KILL);
    }

    /// Holds the broker still (SIGSTOP): connections stay open and nothing answers.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a frozen broker go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// A proxy in front of one of the broker's own listeners: clients that bootstrap from it stay on it.
    ///
    /// `None` for a broker that was not started here, which has no such listener.
    pub fn proxy(&self) -> Option<Proxy> {
        if !self.own {
            return None;
        }
        let listener =
            wait::until("a proxied listener of the broker is free", Duration::from_secs(120), || {
                self.proxied.iter().find(|listener| !listener.taken.swap(true, Ordering::AcqRel))
            });
        Some(Proxy::for_kafka(listener.advertised, listener.behind, Arc::clone(&listener.taken)))
    }

    /// A listener that answers, and the address that it advertises, where nothing listens unless [`Broker::proxy`]
    /// has been called.
    pub(crate) fn misleading(&self) -> (String, String) {
        let listener = self.proxied.first().unwrap_or_else(|| panic!("the broker was not started here"));
        (format!("127.0.0.1:{}", listener.behind), format!("127.0.0.1:{}", listener.advertised))
    }

    /// How the batches of a partition are compressed in the broker's log: 0 not, 1 gzip, 2 snappy, 3 lz4, 4 zstd. `None`
    /// for a broker that was not started here, whose log is elsewhere.
    pub fn codecs(&self, topic: &str, partition: i32) -> Option<Vec<u8>> {
        // Of a batch: its length at 8 (of what follows), its attributes at 21, of which three bits are the codec.
        const BEFORE_LENGTH: usize = 8;
        const LENGTH: usize = 4;
        const ATTRIBUTES: usize = 21;
        if !self.own {
            return None;
        }
        let file = self.folder.join(format!("logs/{topic}-{partition}/00000000000000000000.log"));
        let log = std::fs::read(&file).unwrap_or_else(|e| panic!("read {}: {e}", file.display()));
        let mut codecs = Vec::new();
        let mut rest = &log[..];
        while rest.len() > ATTRIBUTES + 1 {
            let length =
                rest[BEFORE_LENGTH..][..LENGTH].iter().fold(0, |all, byte| all << 8 | usize::from(*byte));
            codecs.push(rest[ATTRIBUTES + 1] & 0b111);
            rest = rest.get(BEFORE_LENGTH + LENGTH + length..).unwrap_or_default();
        }
        Some(codecs)
    }

    fn signal(&self, signal: Signal) {
        match self.child().as_ref() {
            Some(child) => process::signal(child, signal),
            None => panic!("the broker does not run here"),
        }
    }

    fn end(&self, signal: Signal) {
        let Some(mut child) = self.child().take() else { panic!("the broker does not run here") };
        process::signal(&child, signal);
        let _status = process::wait_exit(&mut child, Duration::from_secs(60))
            .unwrap_or_else(|| panic!("the broker did not end after {signal:?}"));
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if std::thread::panicking() && self.own {
            let log = std::fs::read_to_string(self.folder.join("broker.log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- broker at {}:", self.kafka.bootstrap());
            for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
                eprintln!("    {line}");
            }
        }
        if let Some(mut child) = self.child().take() {
            process::signal(&child, Signal::KILL);
            let _status = process::wait_exit(&mut child, Duration::from_secs(30));
        }
        if self.own {
            // A folder that cannot be removed now is removed by the next run.
            let _left_for_later = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// `java` with the broker's class path and a heap that leaves room for the tests.
pub(crate) fn java(lib: &Path) -> Command {
    let mut command = Command::new("java");
    command
        .args(["-Xms128m", "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"])
        .arg("-cp")
        .arg(lib.join("*"));
    command
}

fn data_root() -> PathBuf {
    target_folder().join("broker/data")
}

/// Removes the data of brokers whose test process was killed before it could do so itself.
fn remove_leftovers() {
    let Ok(entries) = std::fs::read_dir(data_root()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.split_once('-')).and_then(|(pid, _)| pid.parse().ok());
        if owner.is_some_and(|pid: u32| !process::exists(pid)) {
            let _another_test_was_faster = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn server_properties(
    folder: &Path,
    port: u16,
    quorum: &Quorum,
    others: &[Listener],
    further: &[(&str, &str)],
) -> String {
    let host = "127.0.0.1";
    let controller = quorum.controllers[quorum.index];
    let id = |index: usize| (index + 1).to_string();
    let voters: Vec<String> = (quorum.controllers.iter().enumerate())
        .map(|(index, port)| format!("{}@{host}:{port}", id(index)))
        .collect();
    // As many copies of everything as there are brokers; one of several may be missing.
    let copies = id(quorum.controllers.len() - 1);
    let copies_min = if quorum.controllers.len() > 1 { "2" } else { "1" };
    let mut listeners = format!("PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}");
    let mut advertised = format!("PLAINTEXT://{host}:{port}");
    let mut protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned();
    for Listener { name, protocol, port, advertised: address } in others {
        listeners += &format!(",{name}://{host}:{port}");
        advertised += &format!(",{name}://{address}");
        protocols += &format!(",{name}:{protocol}");
    }
    let logs = folder.join("logs");
    let lines = [
        ("process.roles", "broker,controller"),
        ("node.id", &id(quorum.index)),
        ("controller.quorum.voters", &voters.join(",")),
        ("listeners", &listeners),
        ("advertised.listeners", &advertised),
        ("controller.listener.names", "CONTROLLER"),
        ("inter.broker.listener.name", "PLAINTEXT"),
        ("listener.security.protocol.map", &protocols),
        ("log.dirs", &logs.display().to_string()),
        ("auto.create.topics.enable", "false"),
        ("default.replication.factor", &copies),
        ("min.insync.replicas", copies_min),
        ("offsets.topic.replication.factor", &copies),
        ("offsets.topic.num.partitions", "4"),
        ("transaction.state.log.replication.factor", &copies),
        ("transaction.state.log.min.isr", copies_min),
        ("transaction.state.log.num.partitions", "4"),
        ("group.initial.rebalance.delay.ms", "0"),
        // The workload's records carry old timestamps: without this they would be deleted as expired.
        ("log.retention.ms", "-1"),
        // A compaction test must not wait for the default of 15 s.
        ("log.cleaner.backoff.ms", "200"),
        ("controlled.shutdown.enable", "false"),
    ];
    let mut text = String::new();
    for (key, value) in lines {
        if further.iter().all(|(other, _)| *other != key) {
            text += &format!("{key}={value}\n");
        }
    }
    for (key, value) in further {
        text += &format!("{key}={value}\n");
    }
    text
}

fn format_storage(lib: &Path, folder: &Path, config: &Path, cluster_id: &str, further: &[&str]) {
    let started = Instant::now();
    let output = process::run(
        java(lib)
            .args(["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c"])
            .arg(config)
            .args(further)
            .stdin(Stdio::null()),
    );
    assert!(
        output.status.success(),
        "format the broker's folder {} ({:?}): {}{}",
        folder.display(),
        started.elapsed(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Kafka's form of a UUID: 16 bytes as 22 letters of URL-safe base 64, not beginning with a dash.
pub(crate) fn random_cluster_id() -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
    let mut random = SmallRng::from_os_rng();
    let mut id: String =
        (0..21).map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())])).collect();
    // The last letter carries the two bits that are left over; the others must be zero.
    id.push(['A', 'Q', 'g', 'w'][random.random_range(0..4)]);
    id
}

/// Waits until nothing answers at `address` any more.
pub fn wait_gone(address: &str, deadline: Duration) {
    wait::until(&format!("{address} no longer accepts connections"), deadline, || {
        std::net::TcpStream::connect(address).is_err().then_some(())
    });
}
