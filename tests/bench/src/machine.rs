//! What the figures were taken on.

use std::fmt;
use std::process::Command;

/// The machine and the versions that matter.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    cores: usize,
    cpu: String,
    memory_gib: f64,
    kernel: String,
    rustc: String,
    librdkafka: String,
    java: String,
    broker: String,
    build: &'static str,
}

impl Machine {
    /// Looks at the machine. What cannot be found is called unknown.
    pub(crate) fn look(broker: String) -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory_kib: f64 = field(&meminfo, "MemTotal:")
            .and_then(|text| text.trim_end_matches("kB").trim().parse().ok())
            .unwrap_or(f64::NAN);
        let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
        Machine {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: field(&cpuinfo, "model name")
                .map_or_else(unknown, |name| name.trim_start_matches([':', ' ']).to_owned()),
            memory_gib: memory_kib / f64::from(1 << 20),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| unknown(), |text| text.trim().to_owned()),
            rustc: first_line(Command::new("rustc").arg("--version")),
            librdkafka,
            java: first_line(Command::new("java").arg("-version")),
            broker,
            build: if cfg!(debug_assertions) { "debug: the figures mean nothing" } else { "release" },
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cores ({}), {:.0} GiB of memory, Linux {}; {}, build {}; librdkafka {}; broker {} on {}.",
            self.cores,
            self.cpu,
            self.memory_gib,
            self.kernel,
            self.rustc,
            self.build,
            self.librdkafka,
            self.broker,
            self.java
        )
    }
}

fn unknown() -> String {
    "unknown".into()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// `java -version` writes to stderr, others to stdout.
fn first_line(command: &mut Command) -> String {
    let Ok(output) = command.output() else { return unknown() };
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&text).lines().next().map_or_else(unknown, str::to_owned)
}
