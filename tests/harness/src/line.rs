//! The lines of Kafka that are tested: the newest one, on which every test runs, and the oldest one that is supported.
//!
//! `tests/harness/broker/pom.xml` names their versions and `tests/all` fetches their jars. Kafka's command line tools, which
//! are clients, are those of the newest line for both.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::broker::Extras;
use crate::scratch::target_folder;
use crate::{Broker, Kafka};

/// A line of Kafka brokers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Line {
    /// Kafka 4.x: transactions of version 2, in which a producer gets a new epoch with each of them.
    #[default]
    Newest,
    /// Kafka 3.9: transactions of version 1.
    Older,
}

impl Line {
    /// The broker of this line that all tests of this process share. That of the older line is always started here.
    pub fn shared(self) -> &'static Broker {
        static NEWEST: OnceLock<Broker> = OnceLock::new();
        static OLDER: OnceLock<Broker> = OnceLock::new();
        match self {
            Line::Newest => NEWEST.get_or_init(|| match std::env::var("TIDEGATE_TEST_BROKERS") {
                Ok(brokers) if !brokers.is_empty() => Broker::running(Kafka::at(&brokers)),
                _ => self.start(&[]),
            }),
            Line::Older => OLDER.get_or_init(|| self.start(&[])),
        }
    }

    /// Starts a broker of the caller's own with further lines for its `server.properties`.
    pub fn start(self, properties: &[(&str, &str)]) -> Broker {
        Broker::start_with(Extras { line: self, properties, ..Extras::default() })
    }

    /// The folder with the broker's jars.
    pub fn jars(self) -> PathBuf {
        let (variable, folder) = match self {
            Line::Newest => ("TIDEGATE_TEST_BROKER_LIB", "broker/lib"),
            Line::Older => ("TIDEGATE_TEST_OLDER_BROKER_LIB", "broker/older/lib"),
        };
        let candidates = [
            std::env::var_os(variable).map(PathBuf::from),
            Some(target_folder().join(folder)),
            Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(folder)),
        ];
        candidates.into_iter().flatten().find(|folder| folder.is_dir()).unwrap_or_else(|| {
            panic!("the jars of the {self:?} broker are missing: run tests/all once, which fetches them")
        })
    }
}
