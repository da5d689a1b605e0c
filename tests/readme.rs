//! The examples in the README are the tested flows, to the letter.

use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The first block of the README in this language.
fn block(language: &str) -> String {
    let readme = read("README.md");
    let fence = format!("```{language}\n");
    let (_, rest) = readme.split_once(&fence).unwrap_or_else(|| panic!("the README has no {language} block"));
    rest.split_once("```")
        .map(|(block, _)| block.to_owned())
        .unwrap_or_else(|| panic!("the block does not end"))
}

/// A file without the comment at its head.
fn body(path: &str, comment: &str) -> String {
    let text = read(path);
    let lines = text.lines().skip_while(|line| line.starts_with(comment) || line.is_empty());
    lines.fold(String::new(), |body, line| body + line + "\n")
}

#[test]
fn the_flow_in_yaml_is_the_one_that_is_tested() {
    assert_eq!(block("yaml"), body("tests/flows/orders-per-minute.yaml", "#"));
}

#[test]
fn the_flow_in_rust_is_the_one_that_is_tested() {
    assert_eq!(block("rust"), body("tests/flows/orders_per_minute.rs", "//!"));
}

// L10: the README's own flow is one of them.
#[test]
fn every_flow_that_is_shipped_asks_for_at_least_once() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/flows");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap_or_else(|error| panic!("{error}")).path());
    let flows: Vec<_> = paths.filter(|path| path.extension().is_some_and(|kind| kind == "yaml")).collect();
    assert!(flows.len() >= 7, "only {} flows", flows.len());
    for flow in flows.iter().map(|path| path.display().to_string()).chain(["src/demo/flow.yaml".into()]) {
        assert!(read(&flow).contains("\n    delivery: at_least_once\n"), "{flow}");
    }
}

#[test]
fn every_file_that_the_readme_names_is_there() {
    let readme = read("README.md");
    for link in readme.split("](").skip(1) {
        let target = link.split(')').next().unwrap_or_default();
        if !target.starts_with("http") {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(target);
            assert!(path.exists(), "the README links to {target}, which is not there");
        }
    }
}

// A43
#[test]
fn the_warnings_in_the_readme_are_those_that_there_are() {
    let readme = read("README.md");
    let (_, rest) =
        readme.split_once("| code | about |\n|---|---|\n").expect("the README has a table of warnings");
    let table: String =
        rest.lines().take_while(|line| line.starts_with('|')).map(|line| format!("{line}\n")).collect();
    let known = tidegate::config::problems::WARNINGS;
    let expected: String = known.iter().map(|(code, about)| format!("| `{code}` | {about} |\n")).collect();
    assert_eq!(table, expected);
}
