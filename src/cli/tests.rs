//! What a command line means, and what the help texts say.

use super::*;

fn config(line: &str) -> Option<Config> {
    let arguments = line.split_whitespace().map(OsString::from);
    match parse(arguments) {
        Parsed::Do(config) => Some(config),
        Parsed::Exit(_) => None,
    }
}

#[test]
fn the_definition_of_the_command_line_is_sound() {
    command::<FlowFile>("tidegate", None).debug_assert();
    command::<SettingsFile>("myflow", Some("1.2.3")).debug_assert();
}

#[test]
fn flags_that_set_options_become_a_layer_over_the_file() {
    let Some(Config::Run(run)) =
        config("tidegate run f.yaml -i 1 -a h0:1;h1:2 -w 2 -r /r --until-end --shutdown-timeout 5s")
    else {
        panic!("a run")
    };
    let typed: Vec<_> = run.flow.flags.iter().map(|flag| (flag.path, flag.value.as_str())).collect();
    assert_eq!(
        typed,
        [
            ("cluster.process_index", "1"),
            ("cluster.addresses", "h0:1;h1:2"),
            ("cluster.workers_per_process", "2"),
            ("cluster.shutdown_timeout", "5s"),
            ("recovery.directory", "/r"),
        ]
    );
    assert!(run.options.until_end && !run.options.allow_lost_state);
}

#[test]
fn a_flow_in_rust_takes_its_settings_from_a_file_and_has_no_flow_argument() {
    let parse = |line: &str| {
        parse_for_program("myflow", "1.0.0", line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    };
    let Parsed::Do(Config::Run(run)) = parse("myflow run --config s.yaml -w 3") else { panic!("a run") };
    assert_eq!((run.flow.file, run.flow.kind), (Some("s.yaml".into()), FileKind::SettingsOnly));
    assert!(matches!(parse("myflow run"), Parsed::Do(Config::Run(_))));
    assert!(matches!(parse("myflow run flow.yaml"), Parsed::Exit(_)));
}

#[test]
fn a_wrong_command_line_is_refused() {
    for line in [
        "tidegate",
        "tidegate run",
        "tidegate run f.yaml -w 0",
        "tidegate run f.yaml -w many",
        "tidegate run f.yaml --shutdown-timeout 5",
        "tidegate run f.yaml --on-peer-loss rejoin",
        "tidegate check f.yaml --format xml",
        "tidegate recovery inspect",
        "tidegate fly",
    ] {
        assert!(config(line).is_none(), "{line}");
    }
}

/// The help of every command as it was reviewed; `TIDEGATE_UPDATE_SNAPSHOTS=1` writes it anew.
#[test]
fn help_texts_are_as_they_were_reviewed() {
    fn add(command: &mut clap::Command, text: &mut String) {
        let name = command.get_bin_name().unwrap_or_default().to_string();
        *text += &format!("$ {name} --help\n{}\n", command.render_long_help());
        for inner in command.get_subcommands_mut() {
            if inner.get_name() != "help" {
                add(inner, text);
            }
        }
    }
    let mut text = String::new();
    for mut command in
        [command::<FlowFile>("tidegate", None), command::<SettingsFile>("myflow", Some("1.2.3"))]
    {
        command = command.term_width(100);
        command.build();
        add(&mut command, &mut text);
    }
    crate::config::tests::compare_snapshot("help.txt", &text);
}

#[test]
fn completions_and_manual_are_made_for_every_command() {
    let mut script = Vec::new();
    clap_complete::generate(Shell::Bash, &mut command::<FlowFile>("tidegate", None), "tidegate", &mut script);
    assert!(String::from_utf8(script).unwrap().contains("--until-end"));
    let directory = tempfile::tempdir().unwrap();
    manual(command::<FlowFile>("tidegate", None), Some(directory.path().into())).unwrap();
    for page in ["tidegate.1", "tidegate-run.1", "tidegate-check.1", "tidegate-recovery-inspect.1"] {
        let text = std::fs::read_to_string(directory.path().join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
}
