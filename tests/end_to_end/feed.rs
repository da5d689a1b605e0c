//! Input that grows while a test does something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_harness::{Kafka, Message, Writer};

/// Produces one part after the other from a thread of its own, at a pace, until it is stopped, dropped or done.
pub(crate) struct Feed {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

impl Feed {
    /// Begins to produce `records` in `parts`, with a pause behind each.
    pub(crate) fn start(
        kafka: &Kafka,
        topic: &str,
        records: Vec<Message>,
        parts: usize,
        pause: Duration,
    ) -> Feed {
        let (kafka, topic) = (kafka.clone(), topic.to_owned());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let produce = move || {
            let writer = Writer::new(&kafka);
            let mut produced = 0;
            for part in records.chunks(records.len().div_ceil(parts)) {
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                for record in part {
                    writer.send(&topic, record);
                }
                writer.flush();
                produced += part.len();
                // The pace of the input, not a wait for anything.
                std::thread::sleep(pause);
            }
            produced
        };
        Feed { stop, thread: Some(std::thread::spawn(produce)) }
    }

    /// Waits until all is produced.
    #[track_caller]
    pub(crate) fn finish(mut self) {
        let _all = self.join();
    }

    /// Produces no further part, and returns how many records there are.
    #[track_caller]
    pub(crate) fn stop(mut self) -> usize {
        self.stop.store(true, Ordering::Release);
        self.join()
    }

    #[track_caller]
    fn join(&mut self) -> usize {
        let thread = self.thread.take().unwrap_or_else(|| panic!("the feed was joined before"));
        thread.join().unwrap_or_else(|_| panic!("the feed failed"))
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}
