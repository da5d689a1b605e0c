//! What `key` is in an expression, and what a sink writes as the key.

use tidegate_harness::Message;

use crate::case::{Case, DEADLINE};

#[test]
fn behind_a_key_by_the_key_is_the_text_that_kafka_holds_also_in_a_windows_result() {
    let case = Case::new("keys", 1);
    let values = [r#"{"n":7}"#, r#"{"n":"7"}"#, r#"{"n":[1,"a"]}"#, r#"{"n":null}"#];
    let records: Vec<_> =
        values.map(|value| Message::new("before", value).to(0).at(1_700_000_000_000)).into();
    case.kafka.produce(&case.input, &records);
    // What is grouped: the key, whether it is the number, whether it is the text.
    let looks = "[key, key == 7, key == '7']";
    let grouped = format!(
        "- decode: {{ json: {{}} }}\n\
         - event_time: {{ from: timestamp, out_of_order: 0s }}\n\
         - key_by: value.n\n\
         - map: {{ name: grouped, value: \"{looks}\" }}\n"
    );
    let window = "- window: { tumbling: 10s, aggregate: { n: count(), looked: first(value) } }\n";
    let result = "- map: { name: result, value: '[key, value.n, value.looked]' }\n";
    let sink = "- sink: { kafka: { topic: OUT } }";
    let rows = |steps: String| {
        let flow = case.flow(&steps).top("volatile_state: allow");
        let flow = crate::case::FlowText { group: format!("{}.{}", case.group, steps.len()), ..flow };
        case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
        let mut rows: Vec<(Option<String>, String)> = case
            .kafka
            .drain(&case.output)
            .iter()
            .map(|row| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                (row.key.as_deref().map(text), row.value.as_deref().map(text).unwrap_or_default())
            })
            .collect();
        rows.sort();
        rows
    };
    let row = |key: Option<&str>, value: &str| (key.map(str::to_owned), value.to_owned());
    let looked = [
        row(None, "[null,false,false]"),
        row(Some("7"), r#"["7",false,true]"#),
        row(Some("7"), r#"["7",false,true]"#),
        row(Some(r#"[1,"a"]"#), r#"["[1,\"a\"]",false,false]"#),
    ];
    assert_eq!(rows(format!("{grouped}{sink}")), looked);
    let counted = [
        row(None, "[null,1,[null,false,false]]"),
        row(Some("7"), r#"["7",2,["7",false,true]]"#),
        row(Some(r#"[1,"a"]"#), r#"["[1,\"a\"]",1,["[1,\"a\"]",false,false]]"#),
    ];
    let mut both = [looked.to_vec(), counted.to_vec()].concat();
    both.sort();
    assert_eq!(rows(format!("{grouped}{window}{result}{sink}")), both);
}
