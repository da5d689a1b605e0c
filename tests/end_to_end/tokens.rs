//! Logins by token (OAUTHBEARER), and what happens when there is none. The broker takes tokens that nobody signed.

use std::path::PathBuf;

use tidegate_harness::{checker, wait};

use crate::case::{Case, DEADLINE, numbered};
use crate::security::{broker, refused, secured};

/// What no log may show.
const PRINTED: &str = "printed-secret-77";

/// A program that prints tokens, and how a test disturbs it.
struct Tokens<'c> {
    case: &'c Case,
    script: PathBuf,
}

impl Tokens<'_> {
    /// Its tokens live for some seconds and have these further claims.
    fn new<'c>(case: &'c Case, lives_s: i64, claims: &str) -> Tokens<'c> {
        let script = format!(
            "cd {folder}
             if [ -e broken ]; then echo {PRINTED}; echo {PRINTED} >&2; exit 3; fi
             echo run >> runs
             encode() {{ base64 -w0 | tr '+/' '-_' | tr -d '='; }}
             now=$(date +%s)
             printf '%s.' \"$(printf '{{\"alg\":\"none\"}}' | encode)\"
             printf '%s.' \"$(printf '{{%s\"iat\":%s,\"exp\":%s}}' '{claims}' $now $((now + {lives_s})) | encode)\"
            ",
            folder = case.scratch.path().display(),
        );
        Tokens { case, script: case.scratch.write("token.sh", &script) }
    }

    fn runs(&self) -> usize {
        std::fs::read_to_string(self.case.scratch.join("runs")).unwrap_or_default().lines().count()
    }

    /// What it prints now, in a file.
    fn file(&self) -> PathBuf {
        let output = tidegate_harness::process::run(std::process::Command::new("sh").arg(&self.script));
        self.case.scratch.write("token", &String::from_utf8_lossy(&output.stdout))
    }

    fn by_command(&self) -> String {
        by(&format!("token_command: [sh, {:?}]", self.script))
    }
}

/// The section `security` of a flow that gets its tokens so.
fn by(token: &str) -> String {
    let ca_file = broker().ca_file();
    format!("security: {{ protocol: sasl_ssl, mechanism: OAUTHBEARER, {token}, ca_file: {ca_file:?} }}")
}

// K18
#[test]
fn a_flow_logs_in_with_the_token_that_a_command_prints_or_a_file_holds() {
    let case = Case::on(broker().kafka(), "tokens", 2);
    let tokens = Tokens::new(&case, 600, r#""sub":"flow","#);
    let by_file = by(&format!("token_file: {:?}", tokens.file()));
    for (security, ids) in [(tokens.by_command(), 0..50), (by_file, 50..100)] {
        case.kafka.produce(&case.input, &numbered(ids, 2));
        let before = tokens.runs();
        let flow = secured(&case, &broker().address(), &security);
        case.launch(&flow).shape(1, 2).until_end().run_to_exit(0, DEADLINE);
        assert!(tokens.runs() <= before + 1, "each client ran the command for itself");
    }
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..100);
}

// K18
#[test]
fn a_token_that_cannot_be_had_or_is_not_taken_ends_the_start_within_ten_seconds_with_78() {
    let case = Case::on(broker().kafka(), "no-token", 1);
    let refused = |security: &str| refused(&case, &secured(&case, &broker().address(), security), 78);
    let nobody = Tokens::new(&case, 600, "");
    let text = refused(&by(&format!("token_file: {:?}", nobody.file())));
    assert!(text.contains("the login was refused"), "{text}");

    let old = Tokens::new(&case, -30, r#""sub":"flow","#);
    let text = refused(&by(&format!("token_file: {:?}", old.file())));
    assert!(text.contains("a token that ended 3"), "{text}");

    case.scratch.write("broken", "");
    let text = refused(&old.by_command());
    assert!(text.contains("`sh` ended with exit status: 3") && !text.contains(PRINTED), "{text}");

    let text = refused(&by("token_file: /nowhere/token"));
    assert!(text.contains("/nowhere/token cannot be read"), "{text}");

    let text = refused(&by("token_command: [sleep, '60']"));
    assert!(text.contains("`sleep` did not end within 4s"), "{text}");
}

// K18
#[test]
fn tokens_are_renewed_while_records_flow_and_one_that_fails_later_is_asked_for_again_without_loss() {
    let case = Case::on(broker().kafka(), "renewed", 2);
    let tokens = Tokens::new(&case, 5, r#""sub":"flow","#);
    let flow = secured(&case, &broker().address(), &tokens.by_command());
    let mut cluster = case.launch(&flow).start();
    let mut ids = 0..20;
    for run in 1..=3 {
        wait::until(&format!("token {run}"), DEADLINE, || (tokens.runs() >= run).then_some(()));
        case.kafka.produce(&case.input, &numbered(ids.clone(), 2));
        case.wait_caught_up();
        ids = ids.end..ids.end + 20;
    }
    let broken = case.scratch.write("broken", "");
    cluster.wait_logged(0, "there is no new token for the login", DEADLINE);
    case.kafka.produce(&case.input, &numbered(ids.clone(), 2));
    std::fs::remove_file(broken).unwrap_or_else(|error| panic!("{error}"));
    case.wait_caught_up();
    cluster.terminate(0);
    cluster.expect_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..ids.end);
    assert!(!cluster.all_stderr().contains(PRINTED), "what the command printed is in the log");
}
