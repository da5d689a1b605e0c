//! The table in `tests/README.md` names every test that cites a row, and nothing that is not there.
//!
//! A test cites rows in the comment above or beside its `#[test]`: `// L55 A9 fault E1: what else is to be said`. Ids up to the
//! first other word count; `fault` before an id takes it from the table of faults, where E and P have a second meaning.
//! `TIDEGATE_WRITE_TABLE=1 cargo test -p tidegate-harness --test table` writes the table anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- table: begin -->";
const END: &str = "<!-- table: end -->";

/// (table of faults, letter, number): sorts as a reader expects.
type Row = (bool, char, u32);

#[test]
fn the_table_names_every_test_that_cites_a_row() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut rows: BTreeMap<Row, Vec<String>> = BTreeMap::new();
    let folders = ["src", "recovery", "cluster", "operators", "tests"];
    let mut sources = Vec::new();
    for folder in folders {
        collect(&root.join(folder), &mut sources);
    }
    sources.sort();
    for source in sources {
        let text = read(&source);
        let shown = source.strip_prefix(&root).unwrap_or(&source).display().to_string();
        for (row, test) in citations(&text) {
            let sentence = test.replace('_', " ");
            rows.entry(row).or_default().push(format!("{sentence} (`{shown}`: `{test}`)"));
        }
    }
    let mut table = String::from("| row | shown by |\n|---|---|\n");
    for ((fault, letter, number), tests) in &rows {
        let name = if *fault { format!("fault {letter}{number}") } else { format!("{letter}{number}") };
        table += &format!("| {name} | {} |\n", tests.join("<br>"));
    }
    let readme = root.join("tests/README.md");
    let text = read(&readme);
    let (Some(begin), Some(end)) = (text.find(BEGIN), text.find(END)) else {
        panic!("{} has no table between {BEGIN} and {END}", readme.display());
    };
    let wanted = format!("{}{BEGIN}\n{table}{}", &text[..begin], &text[end..]);
    if text == wanted {
        return;
    }
    if std::env::var("TIDEGATE_WRITE_TABLE").is_ok_and(|value| value == "1") {
        std::fs::write(&readme, wanted).unwrap_or_else(|e| panic!("write {}: {e}", readme.display()));
        return;
    }
    panic!(
        "the table in tests/README.md is not that of the tests; write it anew with \
         TIDEGATE_WRITE_TABLE=1 cargo test -p tidegate-harness --test table"
    );
}

/// The rows that each test of a source file cites.
fn citations(text: &str) -> Vec<(Row, String)> {
    let mut found = Vec::new();
    let mut cited: Vec<Row> = Vec::new();
    let mut is_test = false;
    for line in text.lines() {
        let line = line.trim();
        if let Some(comment) = line.strip_prefix("// ") {
            cited.extend(ids(comment));
        } else if let Some(rest) = line.strip_prefix("#[test]") {
            is_test = true;
            cited.extend(rest.trim().strip_prefix("// ").map(ids).unwrap_or_default());
        } else if let Some(rest) = line.strip_prefix("fn ")
            && is_test
        {
            let name = rest.split('(').next().unwrap_or(rest);
            found.extend(cited.drain(..).map(|row| (row, name.to_owned())));
            is_test = false;
        } else if !line.starts_with("#[") {
            cited.clear();
            is_test = false;
        }
    }
    found
}

fn ids(comment: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut fault = false;
    for word in comment.split([' ', ',']).filter(|word| !word.is_empty()) {
        if word == "fault" {
            fault = true;
            continue;
        }
        let id = word.trim_end_matches([':', '.']);
        let mut letters = id.chars();
        let (Some(letter), Ok(number)) = (letters.next(), letters.as_str().parse()) else { break };
        if !letter.is_ascii_uppercase() {
            break;
        }
        // S, K and C stand in the table of faults only.
        rows.push((fault || "SKC".contains(letter), letter, number));
        fault = false;
        if id.len() < word.len() {
            break;
        }
    }
    rows
}

fn collect(folder: &Path, sources: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                collect(&path, sources);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(path);
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()))
}

#[test]
fn only_ids_at_the_beginning_of_the_comment_count() {
    assert_eq!(ids("L55 A9 fault E1: not I4"), vec![(false, 'L', 55), (false, 'A', 9), (true, 'E', 1)]);
    assert_eq!(ids("C9, L38: the rest"), vec![(true, 'C', 9), (false, 'L', 38)]);
    assert_eq!(ids("A sentence about L4"), vec![]);
}
