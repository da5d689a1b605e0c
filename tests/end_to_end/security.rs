//! TLS and logins, and what a start says when they do not fit.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tidegate_harness::secure::{PLAIN_PASSWORD, PLAIN_USER, SCRAM_PASSWORD, SCRAM_USER};
use tidegate_harness::{Line, SecureBroker, checker};

use crate::case::{Case, DEADLINE, FlowText, numbered, text_of, tidegate};

/// What waiting does not help must be said within this.
const SOON: Duration = Duration::from_secs(10);

pub(crate) fn broker() -> &'static SecureBroker {
    static BROKER: OnceLock<SecureBroker> = OnceLock::new();
    BROKER.get_or_init(|| SecureBroker::start(Line::Newest))
}

/// How a flow logs in.
#[derive(Clone, Copy)]
struct Login {
    mechanism: &'static str,
    user: &'static str,
    password: &'static str,
}

const SCRAM_512: Login = Login { mechanism: "SCRAM-SHA-512", user: SCRAM_USER, password: SCRAM_PASSWORD };

impl Login {
    fn security(self, broker: &SecureBroker, ca_file: &std::path::Path) -> String {
        format!(
            "security: {{ protocol: sasl_ssl, mechanism: {}, username: {}, password_file: {:?}, ca_file: {ca_file:?} }}",
            self.mechanism,
            self.user,
            broker.password_file(self.password)
        )
    }
}

pub(crate) fn secured(case: &Case, address: &str, security: &str) -> FlowText {
    case.copy().consumer_at(address).producer_at(address).consumer(security).producer(security)
}

/// Runs a flow that cannot start and returns the last line of what it wrote.
pub(crate) fn refused(case: &Case, flow: &FlowText, code: i32) -> String {
    let begin = Instant::now();
    let cluster = case.launch(flow).until_end().run_to_exit(code, DEADLINE);
    assert!(begin.elapsed() < SOON, "it took {:?}: {}", begin.elapsed(), cluster.stderr(0));
    assert_eq!(case.kafka.group_offsets(&case.group, &case.input).len(), 0, "offsets were committed");
    last_line(&cluster.stderr(0))
}

fn last_line(stderr: &str) -> String {
    stderr.lines().last().unwrap_or_default().to_owned()
}

/// Runs a flow over TLS with each kind of login by password.
pub(crate) fn log_in_each_way(broker: &SecureBroker) {
    for login in [
        SCRAM_512,
        Login { mechanism: "SCRAM-SHA-256", ..SCRAM_512 },
        Login { mechanism: "PLAIN", user: PLAIN_USER, password: PLAIN_PASSWORD },
    ] {
        let case = Case::on(broker.kafka(), "secure", 2);
        case.kafka.produce(&case.input, &numbered(0..100, 2));
        let security = login.security(broker, &broker.ca_file());
        let flow = secured(&case, &broker.address(), &security);
        let cluster = case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
        case.wait_caught_up();
        checker::assert_exactly(&case.kafka.drain(&case.output), 0..100);
        assert!(!cluster.all_stderr().contains(login.password), "the password is in the log");
    }
}

// K18
#[test]
fn a_flow_runs_over_tls_with_each_kind_of_login() {
    log_in_each_way(broker());
}

// K18
#[test]
fn a_wrong_password_a_wrong_authority_and_a_wrong_name_end_the_start_within_ten_seconds_with_78() {
    let case = Case::on(broker().kafka(), "refused", 1);
    let wrong = Login { password: "wrong-pass-1234", ..SCRAM_512 };
    let address = broker().address();
    let text = refused(&case, &secured(&case, &address, &wrong.security(broker(), &broker().ca_file())), 78);
    assert!(text.contains(&address) && text.contains("the login was refused"), "{text}");
    assert!(!text.contains(wrong.password), "{text}");

    let text = refused(
        &case,
        &secured(&case, &address, &SCRAM_512.security(broker(), &broker().other_ca_file())),
        78,
    );
    assert!(text.contains(&address) && text.contains("no trusted authority has signed it"), "{text}");

    let address = broker().address_of_another_name();
    let text =
        refused(&case, &secured(&case, &address, &SCRAM_512.security(broker(), &broker().ca_file())), 78);
    assert!(text.contains(&address) && text.contains("another host name"), "{text}");
}

// K18
#[test]
fn a_client_shows_its_certificate_where_the_brokers_want_one_and_another_is_refused_with_78() {
    let case = Case::on(broker().kafka(), "mutual", 1);
    case.kafka.produce(&case.input, &numbered(0..20, 1));
    let security = |client: &str| {
        let ca_file = broker().ca_file();
        let line = format!("security: {{ protocol: ssl, ca_file: {ca_file:?}{client} }}");
        secured(&case, &broker().mutual_address(), &line)
    };
    let with = |(certificate, key): (std::path::PathBuf, std::path::PathBuf)| {
        security(&format!(", certificate_file: {certificate:?}, key_file: {key:?}"))
    };
    for flow in [with(broker().stranger_files()), security("")] {
        let text = refused(&case, &flow, 78);
        assert!(text.contains("it refused the client's certificate"), "{text}");
    }
    case.launch(&with(broker().client_files())).until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..20);
}

// K18: only the output's brokers refuse.
#[test]
fn a_login_that_only_the_output_refuses_ends_the_start_before_anything_is_read() {
    let case = Case::on(broker().kafka(), "output-refuses", 1);
    broker().kafka().produce(&case.input, &numbered(0..10, 1));
    let wrong = Login { password: "wrong-pass-1234", ..SCRAM_512 };
    let flow =
        case.copy().producer_at(&broker().address()).producer(&wrong.security(broker(), &broker().ca_file()));
    let text = refused(&case, &flow, 78);
    assert!(text.contains("the login was refused"), "{text}");
}

// K18
#[test]
fn tls_on_a_plaintext_port_and_plaintext_on_a_tls_port_are_told_within_ten_seconds() {
    let case = Case::on(broker().kafka(), "protocols", 1);
    let plaintext = broker().kafka().bootstrap().to_owned();
    let text =
        refused(&case, &secured(&case, &plaintext, &SCRAM_512.security(broker(), &broker().ca_file())), 69);
    assert!(text.contains(&plaintext) && text.contains("speak plaintext"), "{text}");

    let text = refused(&case, &secured(&case, &broker().address(), "security: { protocol: plaintext }"), 69);
    assert!(text.contains(&broker().address()) && text.contains("want TLS"), "{text}");
}

// K19
#[test]
fn an_advertised_address_that_cannot_be_reached_is_named() {
    let (answers, advertised) = broker().misleading();
    let case = Case::on(broker().kafka(), "advertised", 1);
    let flow = case.copy().consumer_at(&answers).cluster("startup_timeout: 4s");
    let cluster = case.launch(&flow).until_end().run_to_exit(69, DEADLINE);
    let text = last_line(&cluster.stderr(0));
    assert!(text.contains(&format!("{advertised}, the address that the cluster advertises")), "{text}");
}

#[test]
fn no_secret_is_shown_by_check_or_by_an_error_also_not_one_in_extra() {
    let case = Case::on(broker().kafka(), "secrets", 1);
    let hidden = "hidden-4242";
    let flow = secured(&case, &broker().address(), &SCRAM_512.security(broker(), &broker().ca_file()))
        .consumer(&format!("extra: {{ ssl.keystore.password: {hidden}, ssl.keystore.location: /nowhere }}"));
    let launch = case.launch(&flow);
    let file = launch.flow_file().display().to_string();
    for arguments in
        [vec!["check", "--explain", &file], vec!["check", "--explain", "--format", "json", &file]]
    {
        let text = text_of(&tidegate(&arguments));
        assert!(text.contains("password_file"), "{text}");
        assert!(!text.contains(hidden) && !text.contains(SCRAM_PASSWORD), "{text}");
    }
    let cluster = launch.until_end().env("RUST_LOG", "trace").run_to_exit(78, DEADLINE);
    let text = cluster.all_stderr();
    assert!(text.contains("/nowhere"), "{text}");
    assert!(!text.contains(hidden) && !text.contains(SCRAM_PASSWORD), "{text}");
}
