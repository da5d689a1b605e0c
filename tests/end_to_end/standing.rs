//! `tidegate offsets show`: where a flow stands.

use crate::case::{Case, DEADLINE, numbered, text_of, tidegate};

#[test]
fn a_flow_that_stands_still_shows_group_store_log_and_lag_of_each_partition_and_nothing_changes() {
    let case = Case::new("standing", 2);
    case.kafka.produce(&case.input, &numbered(0..20, 2));
    let launch = case.launch(&case.copy()).until_end();
    let file = launch.flow_file().display().to_string();
    let store = case.store().display().to_string();

    let before = tidegate(&["offsets", "show", &file]);
    assert_eq!(before.status.code(), Some(0), "{}", text_of(&before));
    let lines: Vec<String> = String::from_utf8_lossy(&before.stdout).lines().map(str::to_owned).collect();
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        cells(&lines[0]),
        ["topic", "partition", "group", "store", "log", "start", "log", "end", "lag"]
    );
    assert_eq!(cells(&lines[1]), [&case.input, "0", "-", "-", "0", "10", "-"]);
    assert_eq!(cells(&lines[2]), [&case.input, "1", "-", "-", "0", "10", "-"]);
    assert_eq!(lines.len(), 3);

    let no_store = tidegate(&["offsets", "show", &file, "-r", &store]);
    assert_eq!(no_store.status.code(), Some(78), "{}", text_of(&no_store));
    assert!(text_of(&no_store).contains(&format!("there is no recovery store in {store}")));

    launch.clone().recovery(&case.store()).run_to_exit(0, DEADLINE);
    case.kafka.produce(&case.input, &numbered(20..30, 1));
    let group = case.kafka.group_offsets(&case.group, &case.input);
    let after = tidegate(&["offsets", "show", &file, "-r", &store, "--format", "json"]);
    assert_eq!(after.status.code(), Some(0), "{}", text_of(&after));
    let found: Vec<serde_json::Value> = String::from_utf8_lossy(&after.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect();
    let topic = &case.input;
    let expected = [
        serde_json::json!({"topic": topic, "partition": 0, "group": 10, "store": 10, "log_start": 0, "log_end": 20, "lag": 10}),
        serde_json::json!({"topic": topic, "partition": 1, "group": 10, "store": 10, "log_start": 0, "log_end": 10, "lag": 0}),
    ];
    assert_eq!(found, expected);
    assert_eq!(case.kafka.group_offsets(&case.group, &case.input), group);
}
