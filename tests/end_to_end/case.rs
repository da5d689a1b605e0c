//! What most tests need: topics and a group of their own, a flow as YAML, a folder, the binary.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use tidegate_harness::kafka::unique;
use tidegate_harness::{
    Broker, Event, Kafka, Launch, Message, Oracle, Scratch, WindowKind, checker, process,
};

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");

/// A limit that a healthy run never comes near; a broken one must not hang the suite.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Topics, group and folder of one test.
pub(crate) struct Case {
    pub(crate) scratch: Scratch,
    pub(crate) kafka: Kafka,
    pub(crate) name: String,
    pub(crate) input: String,
    pub(crate) output: String,
    pub(crate) group: String,
}

impl Case {
    /// On the shared broker, with an input topic of `partitions` and an output topic of 2 partitions.
    pub(crate) fn new(name: &str, partitions: i32) -> Case {
        Case::on(Broker::shared().kafka(), name, partitions)
    }

    /// The same on another broker.
    pub(crate) fn on(kafka: &Kafka, name: &str, partitions: i32) -> Case {
        let case = Case::without_topics(kafka, name);
        kafka.create_topic(&case.input, partitions);
        kafka.create_topic(&case.output, 2);
        case
    }

    /// The same before any topic exists.
    pub(crate) fn without_topics(kafka: &Kafka, name: &str) -> Case {
        Case {
            scratch: Scratch::new(name),
            kafka: kafka.clone(),
            name: unique(name),
            input: unique(&format!("{name}.in")),
            output: unique(&format!("{name}.out")),
            group: unique(&format!("{name}.group")),
        }
    }

    /// A flow under `at_least_once` that reads the input topic; `steps` is the list below `steps:`, where `OUT` stands for the output topic.
    pub(crate) fn flow(&self, steps: &str) -> FlowText {
        FlowText {
            name: self.name.clone(),
            consumer_brokers: self.kafka.bootstrap().to_owned(),
            producer_brokers: self.kafka.bootstrap().to_owned(),
            group: self.group.clone(),
            topics: self.input.clone(),
            more_topics: Vec::new(),
            consumer: vec!["auto_offset_reset: earliest".into(), "delivery: at_least_once".into()],
            producer: Vec::new(),
            top: Vec::new(),
            recovery: vec!["commit_interval: 200ms".into()],
            cluster: vec!["peer_timeout: 2s".into()],
            steps: steps.replace("OUT", &self.output),
        }
    }

    /// A flow that copies bytes from the input topic to the output topic.
    pub(crate) fn copy(&self) -> FlowText {
        self.flow("- sink: { kafka: { topic: OUT } }")
    }

    /// A launch of one process with one worker.
    pub(crate) fn launch(&self, flow: &FlowText) -> Launch {
        Launch::new(BINARY, &self.scratch, &flow.yaml())
    }

    /// The topic of the markers.
    pub(crate) fn control_topic(&self) -> String {
        format!("{}.tidegate", self.name)
    }

    /// Makes the topic of the markers. A start makes it too, and is sure that it is missing only after some seconds.
    pub(crate) fn make_control_topic(&self) {
        self.kafka.create_topic_with(&self.control_topic(), 1, &[("cleanup.policy", "compact")]);
    }

    /// The directory of the recovery store.
    pub(crate) fn store(&self) -> PathBuf {
        self.scratch.join("recovery")
    }

    /// Waits until the group has committed the end of the input.
    #[track_caller]
    pub(crate) fn wait_caught_up(&self) {
        self.kafka.wait_lag_zero(&self.group, &self.input, DEADLINE);
    }

    /// A `read_committed` reader sees each of these once, and those of a key in order.
    #[track_caller]
    pub(crate) fn assert_copied_once(&self, events: &[Event]) {
        let rows = self.kafka.drain(&self.output);
        checker::assert_exactly(&rows, events.iter().map(|event| event.id));
        checker::assert_key_order(&rows, events);
    }

    /// A `read_committed` reader sees each window of 10 s once, from records that are up to 2 s out of order.
    #[track_caller]
    pub(crate) fn assert_windows_once(&self, events: &[Event]) {
        let oracle =
            Oracle { kind: WindowKind::Tumbling { size: 10_000 }, out_of_order_ms: 2_000, lateness_ms: 0 };
        let rows = self.kafka.drain(&self.output);
        assert_eq!(checker::assert_windows(&rows, &oracle.paid(events).windows), 0, "I2 no duplicates");
    }

    /// How many records the output topic holds.
    pub(crate) fn outputs(&self) -> usize {
        self.kafka.drain(&self.output).len()
    }
}

/// A flow file in parts, so that a test changes the line that it is about.
#[derive(Clone)]
pub(crate) struct FlowText {
    pub(crate) name: String,
    pub(crate) consumer_brokers: String,
    pub(crate) producer_brokers: String,
    pub(crate) group: String,
    pub(crate) topics: String,
    /// Further topics that are read.
    pub(crate) more_topics: Vec<String>,
    /// Further lines of `kafka.consumer`.
    pub(crate) consumer: Vec<String>,
    /// Further lines of `kafka.producer`.
    pub(crate) producer: Vec<String>,
    /// Further lines at the top level.
    pub(crate) top: Vec<String>,
    /// Lines of `recovery`.
    pub(crate) recovery: Vec<String>,
    /// Lines of `cluster`.
    pub(crate) cluster: Vec<String>,
    /// The list of steps.
    pub(crate) steps: String,
}

impl FlowText {
    pub(crate) fn consumer(mut self, line: &str) -> FlowText {
        replace_or_push(&mut self.consumer, line);
        self
    }

    /// Under `exactly_once`, with a control topic of its own.
    pub(crate) fn exactly_once(self) -> FlowText {
        self.consumer("delivery: exactly_once").top("exactly_once: { create: { replication: 1 } }")
    }

    pub(crate) fn without_delivery(mut self) -> FlowText {
        self.consumer.retain(|line| !line.starts_with("delivery:"));
        self
    }

    pub(crate) fn producer(mut self, line: &str) -> FlowText {
        replace_or_push(&mut self.producer, line);
        self
    }

    pub(crate) fn top(mut self, line: &str) -> FlowText {
        replace_or_push(&mut self.top, line);
        self
    }

    pub(crate) fn recovery(mut self, line: &str) -> FlowText {
        replace_or_push(&mut self.recovery, line);
        self
    }

    pub(crate) fn cluster(mut self, line: &str) -> FlowText {
        replace_or_push(&mut self.cluster, line);
        self
    }

    pub(crate) fn consumer_at(mut self, brokers: &str) -> FlowText {
        self.consumer_brokers = brokers.to_owned();
        self
    }

    pub(crate) fn producer_at(mut self, brokers: &str) -> FlowText {
        self.producer_brokers = brokers.to_owned();
        self
    }

    pub(crate) fn also_reading(mut self, topic: &str) -> FlowText {
        self.more_topics.push(topic.to_owned());
        self
    }

    pub(crate) fn named(mut self, name: &str) -> FlowText {
        self.name = name.to_owned();
        self
    }

    pub(crate) fn steps(mut self, steps: &str) -> FlowText {
        self.steps = steps.to_owned();
        self
    }

    /// The file.
    pub(crate) fn yaml(&self) -> String {
        let mut text = format!("flow: {}\n", self.name);
        for line in &self.top {
            text += &format!("{line}\n");
        }
        text += "kafka:\n  consumer:\n";
        text += &format!("    brokers: {}\n    group_id: {}\n", list(&self.consumer_brokers), self.group);
        let topics: Vec<&String> = std::iter::once(&self.topics).chain(&self.more_topics).collect();
        text += &format!("    topics: {topics:?}\n");
        for line in &self.consumer {
            text += &format!("    {line}\n");
        }
        text += &format!("  producer:\n    brokers: {}\n", list(&self.producer_brokers));
        for line in &self.producer {
            text += &format!("    {line}\n");
        }
        for (section, lines) in [("recovery", &self.recovery), ("cluster", &self.cluster)] {
            if !lines.is_empty() {
                text += &format!("{section}:\n");
                for line in lines {
                    text += &format!("  {line}\n");
                }
            }
        }
        text += "steps:\n";
        for line in self.steps.lines() {
            text += &format!("  {line}\n");
        }
        text
    }
}

/// Addresses with commas between them as a list in YAML.
fn list(brokers: &str) -> String {
    format!("{:?}", brokers.split(',').collect::<Vec<_>>())
}

/// A line replaces the one with the same key.
fn replace_or_push(lines: &mut Vec<String>, line: &str) {
    let key = line.split(':').next().unwrap_or(line);
    lines.retain(|other| other.split(':').next() != Some(key));
    lines.push(line.to_owned());
}

/// All aggregates that the oracle knows, for a `window` step.
pub(crate) const AGGREGATES: &str = "{ count: count(), sum: sum(value.amount), min: min(value.amount), max: max(value.amount), \
     mean: mean(value.amount), first: first(value.id), last: last(value.id) }";

/// The steps of a keyed window over the workload's orders, e.g. with `tumbling: 10s`.
pub(crate) fn window_steps(event_time: &str, window: &str) -> String {
    format!(
        "- decode: {{ json: {{}} }}\n\
         - event_time: {{ from: value.at_ms, {event_time} }}\n\
         - filter: value.paid\n\
         - key_by: value.customer\n\
         - window: {{ name: totals, {window}, aggregate: {AGGREGATES} }}\n\
         - sink: {{ kafka: {{ topic: OUT }} }}"
    )
}

/// `n` small records with the values `{"id": first}` and up, dealt over `partitions`, under few keys.
pub(crate) fn numbered(ids: std::ops::Range<u64>, partitions: i32) -> Vec<Message> {
    ids.map(|id| {
        let partition = i32::try_from(id % u64::from(partitions.unsigned_abs())).unwrap_or(0);
        Message::new(format!("k{}", id % 7), format!("{{\"id\":{id}}}")).to(partition)
    })
    .collect()
}

/// Runs the binary to its end with these arguments.
pub(crate) fn tidegate(arguments: &[&str]) -> Output {
    process::run(Command::new(BINARY).args(arguments).env("NO_COLOR", "1").env_remove("TIDEGATE_TEST_STEPS"))
}

/// Everything that a run of the binary wrote.
pub(crate) fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The names of the files in a folder of the store.
pub(crate) fn files(folder: &Path) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeSet::new() };
    entries
        .map(|entry| {
            let entry = entry.unwrap_or_else(|e| panic!("list {}: {e}", folder.display()));
            entry.file_name().to_string_lossy().into_owned()
        })
        .collect()
}

/// The highest commit record of a store.
pub(crate) fn highest_record(store: &Path) -> Option<u64> {
    files(&store.join("commits")).iter().filter_map(|name| name.parse().ok()).max()
}

/// Whether the long forms of the searches are asked for.
pub(crate) fn long() -> bool {
    std::env::var("TIDEGATE_TEST_LONG").is_ok_and(|value| value == "1")
}

/// The seed of a search: `TIDEGATE_TEST_SEED`, or one by the clock; printed, so that a failure can be repeated.
pub(crate) fn seed(test: &str) -> u64 {
    let seed =
        std::env::var("TIDEGATE_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            now.as_secs() ^ u64::from(now.subsec_nanos())
        });
    eprintln!("{test}: TIDEGATE_TEST_SEED={seed}");
    seed
}
