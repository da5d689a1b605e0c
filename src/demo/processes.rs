//! The demo's cluster: two processes of this very binary.

use super::{DemoError, io_error};
use std::fs::OpenOptions;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How the two processes are started.
pub(super) struct Processes {
    place: PathBuf,
    flow: PathBuf,
    store: PathBuf,
    servers: String,
    addresses: String,
    binary: PathBuf,
}

/// Two processes that run; they are killed when this is dropped.
pub(super) struct Cluster<'a> {
    how: &'a Processes,
    children: Vec<Child>,
}

impl Processes {
    pub(super) fn new(
        place: &Path,
        flow: &Path,
        store: &Path,
        servers: &str,
    ) -> Result<Processes, DemoError> {
        // The ports are free now, and taken by the processes a moment later.
        let ports: Vec<_> = (0..2)
            .map(|_| TcpListener::bind("127.0.0.1:0"))
            .collect::<Result<_, _>>()
            .map_err(io_error("cannot find a free port"))?;
        let addresses = ports
            .iter()
            .map(|port| port.local_addr().map(|address| address.to_string()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(io_error("cannot read a free port"))?
            .join(";");
        let binary = std::env::current_exe().map_err(io_error("cannot find this program"))?;
        Ok(Processes {
            place: place.into(),
            flow: flow.into(),
            store: store.into(),
            servers: servers.into(),
            addresses,
            binary,
        })
    }

    /// Starts both.
    pub(super) fn start(&self, more: &[&str]) -> Result<Cluster<'_>, DemoError> {
        let mut cluster = Cluster { how: self, children: Vec::new() };
        for index in 0..2 {
            let log = OpenOptions::new()
                .create(true)
                .append(true)
                .open(self.log(index))
                .map_err(io_error(format!("cannot open {}", self.log(index).display())))?;
            let child = Command::new(&self.binary)
                .arg("run")
                .arg(&self.flow)
                .args(["-i", &index.to_string(), "-a", &self.addresses, "-w", "2", "-r"])
                .arg(&self.store)
                .args(more)
                .env("TIDEGATE_DEMO_BROKERS", &self.servers)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .map_err(io_error(format!("cannot start {}", self.binary.display())))?;
            cluster.children.push(child);
        }
        Ok(cluster)
    }

    fn log(&self, index: usize) -> PathBuf {
        self.place.join(format!("process-{index}.log"))
    }

    /// The last lines that a process logged.
    pub(super) fn tail(&self, index: usize) -> String {
        let text = std::fs::read_to_string(self.log(index)).unwrap_or_else(|error| error.to_string());
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// What the processes said of where the last start resumed.
    pub(super) fn resumed_from(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.log(0)).unwrap_or_default();
        let starts: Vec<_> = text
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(|line| line["message"] == "partition starts")
            .map(|line| {
                format!(
                    "partition {} resumed at offset {} ({})",
                    line["partition"], line["offset"], line["from"]
                )
            })
            .collect();
        starts[starts.len().saturating_sub(super::PARTITIONS as usize)..].to_vec()
    }
}

impl Cluster<'_> {
    /// Fails when a process has ended by itself.
    pub(super) fn check_running(&mut self) -> Result<(), DemoError> {
        for (index, child) in self.children.iter_mut().enumerate() {
            if let Some(status) = child.try_wait().map_err(io_error("cannot look at a process"))? {
                return Err(DemoError::Process(format!(
                    "process {index} ended too early: {status}\n{}",
                    self.how.tail(index)
                )));
            }
        }
        Ok(())
    }

    /// Ends a process with SIGKILL.
    pub(super) fn kill(&mut self, index: usize) -> Result<(), DemoError> {
        let child = &mut self.children[index];
        child.kill().and_then(|()| child.wait()).map_err(io_error("cannot kill a process"))?;
        Ok(())
    }

    /// Waits for a process to end and returns its exit code; `meanwhile` is called again and again.
    pub(super) fn wait(
        &mut self,
        index: usize,
        deadline: Instant,
        mut meanwhile: impl FnMut() -> Result<(), DemoError>,
    ) -> Result<Option<i32>, DemoError> {
        loop {
            let status = self.children[index].try_wait().map_err(io_error("cannot look at a process"))?;
            if let Some(status) = status {
                return Ok(status.code());
            }
            if Instant::now() > deadline {
                return Err(DemoError::Process(format!(
                    "process {index} did not end in time\n{}",
                    self.how.tail(index)
                )));
            }
            meanwhile()?;
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        for child in &mut self.children {
            // A process that has ended already cannot be killed, which is what is wanted.
            drop(child.kill());
            drop(child.wait());
        }
    }
}
