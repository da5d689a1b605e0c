//! A member of a consumer group, as an ordinary application would be: what the runtime must not be disturbed by in silence.

use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};

use rustix::process::Signal;

use crate::broker::java;
use crate::kafka::Kafka;
use crate::line::Line;
use crate::{process, wait};

/// A subscribed consumer; leaves the group when it is dropped.
pub struct Member {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    /// Joins `group` on `topic` and waits until the group has given it a partition.
    pub fn join(kafka: &Kafka, group: &str, topic: &str) -> Member {
        let consumer: BaseConsumer = kafka
            .client()
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "latest")
            .create()
            .unwrap_or_else(|e| panic!("create a member of {group}: {e}"));
        consumer.subscribe(&[topic]).unwrap_or_else(|e| panic!("subscribe {group} to {topic}: {e}"));
        let stop = Arc::new(AtomicBool::new(false));
        let joined = Arc::new(AtomicBool::new(false));
        let (stopped, has_joined) = (Arc::clone(&stop), Arc::clone(&joined));
        let thread = std::thread::Builder::new()
            .name("member".into())
            .spawn(move || {
                while !stopped.load(Ordering::Acquire) {
                    // What it reads does not matter; polling keeps it in the group.
                    let _record = consumer.poll(Duration::from_millis(50));
                    let owns = consumer.assignment().is_ok_and(|assignment| assignment.count() > 0);
                    has_joined.fetch_or(owns, Ordering::AcqRel);
                }
                consumer.unsubscribe();
            })
            .unwrap_or_else(|e| panic!("start the member's thread: {e}"));
        let member = Member { stop, thread: Some(thread) };
        wait::until(&format!("a member joins {group}"), Duration::from_secs(60), || {
            joined.load(Ordering::Acquire).then_some(())
        });
        member
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Kafka's own console consumer in a JVM, in a group, from the beginning, with commits by a timer.
pub struct ConsoleConsumer(Child);

impl ConsoleConsumer {
    /// Starts one; it joins `group` after a second or two.
    pub fn start(kafka: &Kafka, group: &str, topic: &str) -> ConsoleConsumer {
        let mut command = java(&Line::Newest.jars());
        command
            .arg("org.apache.kafka.tools.consumer.ConsoleConsumer")
            .args(["--bootstrap-server", kafka.bootstrap(), "--topic", topic, "--group", group])
            .args(["--from-beginning", "--consumer-property", "auto.commit.interval.ms=100"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = process::spawn(command).unwrap_or_else(|e| panic!("start the console consumer: {e}"));
        ConsoleConsumer(child)
    }

    /// Ends it in an orderly way: it commits and leaves the group.
    pub fn stop(mut self) {
        process::signal(&self.0, Signal::TERM);
        let ended = process::wait_exit(&mut self.0, Duration::from_secs(60));
        assert!(ended.is_some(), "the console consumer does not end");
    }
}

impl Drop for ConsoleConsumer {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            process::signal(&self.0, Signal::KILL);
            let _status = process::wait_exit(&mut self.0, Duration::from_secs(30));
        }
    }
}
