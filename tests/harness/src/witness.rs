//! What Kafka's own command line tools say: witnesses that share no code with the runtime or the harness.

use std::collections::BTreeMap;

use crate::kafka::{Kafka, tool};

/// One line of `kafka-consumer-groups --describe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLine {
    /// The committed offset.
    pub current: i64,
    /// The log end.
    pub end: i64,
    /// `end - current`, as the tool computed it.
    pub lag: i64,
    /// The member that owns the partition, if the group has members.
    pub member: Option<String>,
}

/// What `kafka-consumer-groups --describe --group` prints, by (topic, partition).
pub fn describe_group(kafka: &Kafka, group: &str) -> BTreeMap<(String, i32), GroupLine> {
    let output = tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        &["--bootstrap-server", kafka.bootstrap(), "--describe", "--group", group],
    );
    parse_describe(&output)
}

/// The members that `kafka-consumer-groups --describe --members` lists.
pub fn group_members(kafka: &Kafka, group: &str) -> Vec<String> {
    let output = tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        &["--bootstrap-server", kafka.bootstrap(), "--describe", "--members", "--group", group],
    );
    output.lines().filter(|line| line.starts_with(group)).map(str::to_owned).collect()
}

/// The features that `kafka-features describe` shows as in force, each with its level.
pub fn features(kafka: &Kafka) -> BTreeMap<String, String> {
    let output =
        tool("org.apache.kafka.tools.FeatureCommand", &["--bootstrap-server", kafka.bootstrap(), "describe"]);
    parse_features(&output)
}

fn parse_features(output: &str) -> BTreeMap<String, String> {
    let after = |line: &str, label: &str| {
        let (_, rest) = line.split_once(label)?;
        rest.split_whitespace().next().map(str::to_owned)
    };
    (output.lines())
        .filter_map(|line| Some((after(line, "Feature:")?, after(line, "FinalizedVersionLevel:")?)))
        .collect()
}

fn parse_describe(output: &str) -> BTreeMap<(String, i32), GroupLine> {
    let mut lines = BTreeMap::new();
    let mut columns: Vec<&str> = Vec::new();
    for line in output.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.first() == Some(&"GROUP") {
            columns = fields;
            continue;
        }
        let field = |name: &str| {
            columns.iter().position(|column| *column == name).and_then(|at| fields.get(at)).copied()
        };
        let (Some(topic), Some(Ok(partition))) = (field("TOPIC"), field("PARTITION").map(str::parse)) else {
            continue;
        };
        let number = |name: &str| field(name).and_then(|text| text.parse().ok()).unwrap_or(-1);
        lines.insert(
            (topic.to_owned(), partition),
            GroupLine {
                current: number("CURRENT-OFFSET"),
                end: number("LOG-END-OFFSET"),
                lag: number("LAG"),
                member: field("CONSUMER-ID").filter(|id| *id != "-").map(str::to_owned),
            },
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_table_is_read_by_its_column_names() {
        let lines = parse_describe(
            "\nConsumer group 'g' has no active members.\n\n\
             GROUP  TOPIC  PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG  CONSUMER-ID  HOST  CLIENT-ID\n\
             g      in     1          7               9               2    -            -     -\n",
        );
        let expected = GroupLine { current: 7, end: 9, lag: 2, member: None };
        assert_eq!(lines.get(&("in".to_owned(), 1)), Some(&expected));
    }

    #[test]
    fn a_feature_is_read_by_its_name_and_the_level_that_is_in_force() {
        let features = parse_features(
            "Feature: kraft.version\tSupportedMinVersion: 0\tSupportedMaxVersion: 1\tFinalizedVersionLevel: 0\tEpoch: 14\n\
             Feature: metadata.version  SupportedMinVersion: UNKNOWN 1  SupportedMaxVersion: 3.9-IV0  \
             FinalizedVersionLevel: 3.9-IV0  Epoch: 14\n",
        );
        let expected = [("kraft.version", "0"), ("metadata.version", "3.9-IV0")];
        assert_eq!(features, expected.map(|(name, level)| (name.to_owned(), level.to_owned())).into());
    }
}
