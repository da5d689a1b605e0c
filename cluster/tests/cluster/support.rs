//! Members of a cluster in threads of one test process, free ports, a proxy, and waiting with a deadline.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_cluster::{
    Assignment, ClusterError, ClusterSpec, Identity, Joined, Mesh, Secret, Supervisor, Timeouts, new_run_id,
};
use tidegate_recovery::{FlowFingerprint, Generation};

/// Longest wait for anything that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Addresses that nobody listens at, below the range from which the system takes ports for connections.
pub(crate) fn free_addresses(count: usize) -> Vec<String> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 12_000 + (std::process::id() % 150) as u16 * 100;
    let mut found = Vec::new();
    while found.len() < count {
        let port = base + NEXT.fetch_add(1, Ordering::Relaxed) % 5_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            found.push(format!("127.0.0.1:{port}"));
        }
    }
    found
}

/// What one member of a cluster is started with.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) index: u32,
    pub(crate) addresses: Vec<String>,
    pub(crate) workers: usize,
    pub(crate) identity: Identity,
    pub(crate) timeouts: Timeouts,
    pub(crate) supervisor: Supervisor,
}

impl Member {
    pub(crate) fn new(index: u32, addresses: &[String]) -> Member {
        Member {
            index,
            addresses: addresses.to_vec(),
            workers: 1,
            identity: Identity {
                cluster_id: "orders".into(),
                fingerprint: FlowFingerprint(7),
                build: "build-1".into(),
                in_common: Default::default(),
                run_id: new_run_id().unwrap(),
                known_generation: Generation(0),
                secret: None,
            },
            timeouts: Timeouts {
                startup: Duration::from_secs(20),
                peer: Duration::from_secs(2),
                unwind: Duration::from_secs(2),
                stranger: Duration::from_secs(5),
            },
            supervisor: Supervisor::new(),
        }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Member)) -> Member {
        change(&mut self);
        self
    }

    pub(crate) fn secret(self, secret: &str) -> Member {
        self.with(|member| member.identity.secret = Some(Secret::new(secret)))
    }

    pub(crate) fn bind(&self) -> Result<Mesh, ClusterError> {
        let spec = ClusterSpec::new(Some(self.index), &self.addresses, Some(self.workers))?;
        Mesh::bind(spec, self.identity.clone(), self.timeouts, &self.supervisor)
    }

    /// Joins with the generation of a cluster without a store.
    pub(crate) fn join(&self) -> Result<Joined, ClusterError> {
        self.bind()?
            .join(|present| Ok(Assignment { generation: present.next_generation(), settings: Vec::new() }))
    }

    /// Joins on a thread of its own.
    pub(crate) fn joining(&self) -> JoinHandle<Result<Joined, ClusterError>> {
        let member = self.clone();
        std::thread::spawn(move || member.join())
    }
}

/// Joins all members, each on its thread.
pub(crate) fn join_all(members: &[Member]) -> Vec<Result<Joined, ClusterError>> {
    let joining: Vec<_> = members.iter().map(Member::joining).collect();
    joining.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// The error of a join that must fail.
pub(crate) fn failure(result: Result<Joined, ClusterError>) -> ClusterError {
    match result {
        Ok(_) => panic!("the join succeeded"),
        Err(error) => error,
    }
}

/// A TCP proxy whose connections can be cut or frozen, by the order in which they were made.
pub(crate) struct Proxy {
    pub(crate) address: String,
    connections: Arc<Mutex<Vec<Carried>>>,
}

struct Carried {
    ends: [TcpStream; 2],
    frozen: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn to(target: &str) -> Proxy {
        let address = free_addresses(1).remove(0);
        let listener = TcpListener::bind(&address).unwrap();
        let connections: Arc<Mutex<Vec<Carried>>> = Arc::default();
        let (carried, target) = (Arc::clone(&connections), target.to_string());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(&target) else { continue };
                let frozen = Arc::new(AtomicBool::new(false));
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let frozen = Arc::clone(&frozen);
                    std::thread::spawn(move || carry(from, to, &frozen));
                }
                carried.lock().unwrap().push(Carried { ends: [near, far], frozen });
            }
        });
        Proxy { address, connections }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.lock().unwrap().len()
    }

    pub(crate) fn cut(&self, connection: usize) {
        for end in &self.connections.lock().unwrap()[connection].ends {
            end.shutdown(Shutdown::Both).unwrap();
        }
    }

    pub(crate) fn freeze(&self) {
        for carried in self.connections.lock().unwrap().iter() {
            carried.frozen.store(true, Ordering::SeqCst);
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, frozen: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(read) = from.read(&mut buffer) {
        if frozen.load(Ordering::SeqCst) {
            continue;
        }
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // The other direction may have closed it.
    let _ = to.shutdown(Shutdown::Write);
}
