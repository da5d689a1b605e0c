//! The shape of the cluster, from `-i INDEX -a "h0:p0;h1:p1" -w WORKERS`.
//!
//! All mistakes are found before anything is done, and reported together.

use crate::error::ClusterError;
use std::collections::HashMap;
use std::fmt;
use tidegate_recovery::{ProcessIndex, WorkerIndex};

/// Most processes in a cluster.
pub const PROCESSES_MAX: usize = 1024;
/// Most worker threads in a process.
pub const WORKERS_PER_PROCESS_MAX: usize = 1024;

/// Where a process listens: a host name or an IP address, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Name, IPv4 address, or IPv6 address without brackets.
    pub host: String,
    /// The port, never 0.
    pub port: u16,
}

impl Address {
    /// Parses `host:port` or `[ipv6]:port`; the error says what is wrong and what to write.
    pub fn parse(text: &str) -> Result<Address, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("is empty, write host:port".into());
        }
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, tail) =
                rest.split_once(']').ok_or("has no closing bracket, write [::1]:2101".to_string())?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(format!("has {host:?} in its brackets, which is no IPv6 address"));
            }
            let port = tail.strip_prefix(':').ok_or("has no port, write [::1]:2101".to_string())?;
            (host, port)
        } else if text.parse::<std::net::Ipv6Addr>().is_ok() {
            return Err("is an IPv6 address without brackets and port, write [::1]:2101".into());
        } else {
            let (host, port) = text.rsplit_once(':').ok_or("has no port, write host:port".to_string())?;
            if host.contains(':') {
                return Err("has more than one colon; an IPv6 address goes into brackets: [::1]:2101".into());
            }
            (host, port)
        };
        if host.is_empty() {
            return Err("has no host, write host:port".into());
        }
        if host.contains(|c: char| c.is_whitespace() || matches!(c, '/' | ',' | '@')) {
            return Err(format!("has {host:?} for its host; addresses are separated by semicolons"));
        }
        match port.parse::<u16>() {
            Ok(0) => Err("has port 0, which nobody can connect to".into()),
            Ok(port) => Ok(Address { host: host.to_string(), port }),
            Err(_) => Err(format!("has {port:?} for its port, write a number from 1 to 65535")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The shape of the cluster and this process's place in it. Made by [`ClusterSpec::new`] and therefore valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    index: ProcessIndex,
    addresses: Vec<Address>,
    workers_per_process: usize,
}

impl ClusterSpec {
    /// One process alone, which listens nowhere.
    ///
    /// # Errors
    /// [`ClusterError::Spec`] when `workers` is 0 or too large.
    pub fn alone(workers: usize) -> Result<ClusterSpec, ClusterError> {
        ClusterSpec::new(None, &[], Some(workers))
    }

    /// From a list of addresses, as a configuration file has it. Everything is optional: without addresses it
    /// is one process that listens nowhere, without `workers` a process has one worker.
    ///
    /// # Errors
    /// [`ClusterError::Spec`] with every mistake.
    pub fn new(
        index: Option<u32>,
        addresses: &[String],
        workers: Option<usize>,
    ) -> Result<ClusterSpec, ClusterError> {
        let mut problems = Vec::new();
        let workers_per_process = workers.unwrap_or(1);
        if workers_per_process == 0 {
            problems.push("the number of workers is 0, a process needs at least one".to_string());
        } else if workers_per_process > WORKERS_PER_PROCESS_MAX {
            problems.push(format!(
                "the number of workers is {workers_per_process}, a process has at most {WORKERS_PER_PROCESS_MAX}"
            ));
        }
        if addresses.len() > PROCESSES_MAX {
            problems.push(format!(
                "there are {} addresses, a cluster has at most {PROCESSES_MAX} processes",
                addresses.len()
            ));
        }
        let mut parsed = Vec::new();
        let mut places: HashMap<(String, u16), usize> = HashMap::new();
        for (place, text) in addresses.iter().enumerate() {
            match Address::parse(text) {
                Ok(address) => {
                    let key = (address.host.to_ascii_lowercase(), address.port);
                    match places.get(&key) {
                        Some(earlier) => problems
                            .push(format!("address {place} ({address}) is the same as address {earlier}")),
                        None => {
                            places.insert(key, place);
                        }
                    }
                    parsed.push(address);
                }
                Err(problem) => problems.push(format!("address {place} ({text:?}) {problem}")),
            }
        }
        let processes = addresses.len().max(1);
        let index = match index {
            Some(index) if index as usize >= processes => {
                problems.push(if addresses.is_empty() {
                    format!("the process index is {index}, but no addresses are given: name every process's")
                } else {
                    format!(
                        "the process index is {index}, but {} given, so it must be below {processes}",
                        counted(processes)
                    )
                });
                index
            }
            Some(index) => index,
            None if processes > 1 => {
                problems.push(format!(
                    "{} given, but no process index: say which of them this process is",
                    counted(processes)
                ));
                0
            }
            None => 0,
        };
        if problems.is_empty() {
            Ok(ClusterSpec { index: ProcessIndex(index), addresses: parsed, workers_per_process })
        } else {
            Err(ClusterError::Spec { problems })
        }
    }

    /// From the flags `-i`, `-a` (addresses separated by semicolons) and `-w`.
    ///
    /// # Errors
    /// [`ClusterError::Spec`] with every mistake.
    pub fn from_flags(
        index: Option<u32>,
        addresses: Option<&str>,
        workers: Option<usize>,
    ) -> Result<ClusterSpec, ClusterError> {
        let addresses: Vec<String> = match addresses {
            None => Vec::new(),
            Some(text) => {
                // One semicolon at the end is a habit, not a mistake.
                let text = text.trim();
                let text = text.strip_suffix(';').unwrap_or(text);
                text.split(';').map(|part| part.trim().to_string()).collect()
            }
        };
        ClusterSpec::new(index, &addresses, workers)
    }

    /// This process's place in the address list.
    pub fn index(&self) -> ProcessIndex {
        self.index
    }

    /// Number of processes.
    pub fn processes(&self) -> usize {
        self.addresses.len().max(1)
    }

    /// Worker threads of each process.
    pub fn workers_per_process(&self) -> usize {
        self.workers_per_process
    }

    /// Worker threads of the whole cluster.
    pub fn workers(&self) -> usize {
        self.processes() * self.workers_per_process
    }

    /// The worker at `thread` of this process.
    pub fn worker(&self, thread: usize) -> WorkerIndex {
        WorkerIndex((self.index.0 as usize * self.workers_per_process + thread) as u32)
    }

    /// Where process `index` is reached; `None` for a process alone without an address.
    pub fn address(&self, index: ProcessIndex) -> Option<&Address> {
        self.addresses.get(index.0 as usize)
    }

    /// The indexes of all processes.
    pub fn indexes(&self) -> impl Iterator<Item = ProcessIndex> + use<> {
        (0..self.processes() as u32).map(ProcessIndex)
    }

    /// The indexes of all processes but this one.
    pub fn peers(&self) -> impl Iterator<Item = ProcessIndex> + use<> {
        let me = self.index;
        self.indexes().filter(move |index| *index != me)
    }

    /// "process 1 (host:port)".
    pub(crate) fn named(&self, index: ProcessIndex) -> String {
        match self.address(index) {
            Some(address) => format!("process {index} ({address})"),
            None => format!("process {index}"),
        }
    }
}

fn counted(addresses: usize) -> String {
    match addresses {
        1 => "1 address is".to_string(),
        n => format!("{n} addresses are"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(index: Option<u32>, addresses: Option<&str>, workers: Option<usize>) -> Vec<String> {
        match ClusterSpec::from_flags(index, addresses, workers) {
            Err(ClusterError::Spec { problems }) => problems,
            other => panic!("expected problems, got {other:?}"),
        }
    }

    #[test]
    fn nothing_given_is_one_process_with_one_worker() {
        let spec = ClusterSpec::from_flags(None, None, None).unwrap();
        assert_eq!((spec.processes(), spec.workers(), spec.index()), (1, 1, ProcessIndex(0)));
        assert_eq!(spec.address(ProcessIndex(0)), None);
    }

    #[test]
    fn names_ipv4_and_bracketed_ipv6_addresses_are_understood() {
        let spec =
            ClusterSpec::from_flags(Some(2), Some("h0:2101; 10.0.0.1:2101 ;[::1]:2101;"), Some(3)).unwrap();
        assert_eq!(spec.processes(), 3);
        assert_eq!(spec.workers(), 9);
        assert_eq!(spec.worker(1), WorkerIndex(7));
        assert_eq!(spec.named(ProcessIndex(2)), "process 2 ([::1]:2101)");
        assert_eq!(spec.peers().collect::<Vec<_>>(), [ProcessIndex(0), ProcessIndex(1)]);
    }

    #[test] // C5
    fn all_mistakes_are_reported_at_once() {
        let problems = problems(Some(7), Some("h0:1;H0:1;h2;::1;[::1]x;h5:0;h6:99999;;a/b:1"), Some(0));
        for (problem, expected) in problems.iter().zip([
            "the number of workers is 0",
            "address 1 (H0:1) is the same as address 0",
            "address 2 (\"h2\") has no port",
            "address 3 (\"::1\") is an IPv6 address without brackets",
            "address 4 (\"[::1]x\") has no port",
            "address 5 (\"h5:0\") has port 0",
            "address 6 (\"h6:99999\") has \"99999\" for its port",
            "address 7 (\"\") is empty",
            "address 8 (\"a/b:1\") has \"a/b\" for its host",
        ]) {
            assert!(problem.starts_with(expected), "{problem}");
        }
        assert_eq!(problems.len(), 9);
    }

    #[test] // C5
    fn an_index_must_be_within_the_addresses() {
        assert!(problems(Some(2), Some("h0:1;h1:1"), None)[0].contains("must be below 2"));
        assert!(problems(Some(1), None, None)[0].contains("no addresses are given"));
        assert!(problems(None, Some("h0:1;h1:1"), None)[0].contains("no process index"));
    }

    #[test]
    fn sizes_are_limited() {
        assert!(problems(None, None, Some(WORKERS_PER_PROCESS_MAX + 1))[0].contains("at most 1024"));
        let many: Vec<String> = (0..=PROCESSES_MAX).map(|n| format!("h{n}:1")).collect();
        assert!(problems(Some(0), Some(&many.join(";")), None)[0].contains("at most 1024"));
    }
}
