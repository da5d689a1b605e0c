//! [`Troubles`]: what keeps a client from its brokers, in plain words.
//!
//! The library tries a broker again for ever, whatever the reason, and answers a question only with "timed out". The
//! reason is in the line that it logs when a connection fails. This module keeps the last of these for each broker
//! and sorts them: a password or a certificate does not become right by waiting, a broker that is away may come
//! back. Which texts mean what is bound to the library's version; the end-to-end tests meet each of them.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Whether waiting helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TroubleKind {
    /// The broker is away: it may come back.
    Away,
    /// It looks as if client and port spoke different protocols; a broker that starts or ends looks so for a moment.
    OtherProtocol,
    /// The broker does not accept the client, or the client not the broker, whatever the time.
    Refused,
    /// There is no token to log in with: no broker is asked before there is one.
    NoToken,
}

/// What the client last heard of one broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) kind: TroubleKind,
    /// The broker and what is wrong.
    text: String,
    since: Instant,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Trouble {
    /// Whether it has lasted for so long.
    pub(crate) fn has_lasted(&self, at_least: Duration) -> bool {
        self.since.elapsed() >= at_least
    }
}

/// What a client heard of its brokers.
#[derive(Default)]
pub(crate) struct Troubles(Mutex<Heard>);

#[derive(Default)]
struct Heard {
    brokers: BTreeMap<String, Trouble>,
    /// What is wrong with a broker's certificate, by address: the line about the connection does not say it.
    certificates: BTreeMap<String, &'static str>,
    /// Why there is no token to log in with.
    token: Option<Trouble>,
}

impl Troubles {
    /// A connection failed; `line` is the library's.
    pub(super) fn connection_failed(&self, line: &str) {
        let (broker, reason) = split(line);
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let certificate = heard.certificates.get(broker.address).copied();
        let (kind, what) = explain(reason, certificate);
        let address = if broker.advertised {
            format!("{}, the address that the cluster advertises", broker.address)
        } else {
            broker.address.to_owned()
        };
        let text = format!("{address}: {what}");
        match heard.brokers.get_mut(broker.address) {
            // A name has several addresses, and what one of them refuses stays true when another does not answer.
            Some(known) if known.kind == TroubleKind::Refused && kind != known.kind => {}
            Some(known) if known.kind == kind => known.text = text,
            _ => {
                heard
                    .brokers
                    .insert(broker.address.to_owned(), Trouble { kind, text, since: Instant::now() });
            }
        }
    }

    /// The certificate of the broker at `address` was not accepted; `error` is OpenSSL's number.
    pub(super) fn certificate_refused(&self, address: &str, error: c_int) -> &'static str {
        let text = certificate_text(error);
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.certificates.insert(address.to_owned(), text);
        text
    }

    /// Why there is no token to log in with; `None` when there is one.
    pub(super) fn token(&self, missing: Option<&str>) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.token = missing.map(|why| Trouble {
            kind: TroubleKind::NoToken,
            text: why.to_owned(),
            since: Instant::now(),
        });
    }

    /// What was last heard of each broker, and of the token, the worst first.
    pub(crate) fn all(&self) -> Vec<Trouble> {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Trouble> = heard.token.iter().chain(heard.brokers.values()).cloned().collect();
        all.sort_by_key(|trouble| std::cmp::Reverse(trouble.kind));
        all
    }
}

#[derive(Debug, PartialEq, Eq)]
struct BrokerName<'a> {
    address: &'a str,
    /// The address came from the cluster and not from the configuration.
    advertised: bool,
}

/// Splits `[thrd:…]: sasl_ssl://host:port/id: reason`; of a coordinator `GroupCoordinator: host:port: reason`.
fn split(line: &str) -> (BrokerName<'_>, &str) {
    let line =
        line.strip_prefix("[thrd:").and_then(|rest| rest.split_once("]: ")).map_or(line, |(_, rest)| rest);
    let (name, reason) = line.split_once(": ").unwrap_or(("", line));
    if name.contains("Coordinator")
        && let Some((address, reason)) = reason.split_once(": ")
        && !address.contains(' ')
    {
        return (BrokerName { address, advertised: true }, reason);
    }
    let name = name.split_once("://").map_or(name, |(_, name)| name);
    let (address, id) = name.rsplit_once('/').unwrap_or((name, "bootstrap"));
    (BrokerName { address, advertised: id != "bootstrap" }, reason)
}

fn explain(reason: &str, certificate: Option<&'static str>) -> (TroubleKind, String) {
    use TroubleKind::{Away, OtherProtocol, Refused};
    // What the library adds about its own options and about the time helps nobody here.
    let plain = reason.split(" (after ").next().unwrap_or(reason);
    let has = |text: &str| plain.contains(text);
    let after = |prefix: &str| plain.strip_prefix(prefix).unwrap_or(plain).to_owned();
    if has("certificate verify failed") || has("certificate could not be verified") {
        let what = certificate.unwrap_or("it cannot be verified");
        return (Refused, format!("its certificate is not accepted: {what}"));
    }
    if has("SASL") && (has("authentication") || has("handshake failed")) && !has("might require SASL") {
        return (Refused, format!("the login was refused: {}", after("SASL authentication error: ")));
    }
    // The state in which a connection ended is only in what the library adds.
    let ended_in =
        |state: &str| has("connection closed by peer") && reason.contains(&format!("in state {state}"));
    let texts = ["PLAINTEXT broker listener", "wrong version number", "packet length too long"];
    if texts.into_iter().any(has) || ended_in("SSL_HANDSHAKE") {
        return (OtherProtocol, "it breaks the TLS handshake off: the port seems to speak plaintext".into());
    }
    if has("connecting to a SSL listener") || ended_in("APIVERSION_QUERY") {
        return (
            OtherProtocol,
            "it breaks the connection off at the first request: the port seems to want TLS".into(),
        );
    }
    if has("might require SASL")
        || (ended_in("UP") && milliseconds(reason).is_some_and(|after| after < NEW_MS))
    {
        return (OtherProtocol, "it breaks new connections off: the port seems to want a login".into());
    }
    if has(" alert ") {
        return (
            Refused,
            format!("it refused the client's certificate: {}", after("SSL handshake failed: ")),
        );
    }
    if has("SSL handshake failed") {
        return (Refused, format!("the TLS handshake failed: {}", after("SSL handshake failed: ")));
    }
    match plain.split_once(" failed: ") {
        Some((connect, why)) if connect.starts_with("Connect to ") => {
            (Away, format!("it cannot be reached: {why}"))
        }
        _ => (Away, plain.to_owned()),
    }
}

/// A connection that ends sooner was never of use: a broker that goes away ends old ones.
const NEW_MS: u64 = 2_000;

/// The time in `… (after 12ms in state …)`.
fn milliseconds(reason: &str) -> Option<u64> {
    reason.rsplit_once(" (after ")?.1.split_once("ms in state ")?.0.parse().ok()
}

/// What OpenSSL's number (`X509_V_ERR_…`) means for whoever set the client up.
fn certificate_text(error: c_int) -> &'static str {
    match error {
        9 => "it is not valid yet",
        10 => "it has expired",
        2 | 18..=21 => "no trusted authority has signed it (see `ca_file`)",
        23 => "it was revoked",
        62 | 64 => "it is for another host name (it must name the address that the client uses)",
        _ => "it cannot be verified",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(lines: &[&str]) -> Vec<(TroubleKind, String)> {
        let troubles = Troubles::default();
        for line in lines {
            troubles.connection_failed(line);
        }
        troubles.all().into_iter().map(|trouble| (trouble.kind, trouble.text)).collect()
    }

    #[test]
    fn a_refused_login_stays_known_when_another_address_of_the_name_does_not_answer() {
        // K18
        let found = heard(&[
            "[thrd:sasl_ssl://b:9093/bootstrap]: sasl_ssl://b:9093/bootstrap: SASL authentication error: Authentication failed (after 9ms in state AUTH_REQ)",
            "[thrd:sasl_ssl://b:9093/bootstrap]: sasl_ssl://b:9093/bootstrap: Connect to ipv6#[::1]:9093 failed: Connection refused (after 0ms in state CONNECT)",
        ]);
        assert_eq!(
            found,
            [(TroubleKind::Refused, "b:9093: the login was refused: Authentication failed".into())]
        );
    }

    #[test]
    fn a_token_that_is_missing_is_the_reason_until_there_is_one() {
        // K18
        let troubles = Troubles::default();
        troubles.token(Some("no such file"));
        assert_eq!(
            (troubles.all()[0].kind, troubles.all()[0].to_string()),
            (TroubleKind::NoToken, "no such file".into())
        );
        troubles.token(None);
        assert_eq!(troubles.all(), []);
    }

    #[test]
    fn an_advertised_address_that_cannot_be_reached_is_told_from_a_configured_one() {
        // K19
        let found = heard(&[
            "[thrd:GroupCoordinator]: GroupCoordinator: 10.0.0.1:9092: Connect to ipv4#10.0.0.1:9092 failed: Connection refused (after 0ms in state CONNECT)",
            "[thrd:h:1/bootstrap]: h:1/bootstrap: Failed to resolve 'h:1': Name or service not known (after 4ms in state CONNECT)",
        ]);
        assert_eq!(
            found,
            [
                (
                    TroubleKind::Away,
                    "10.0.0.1:9092, the address that the cluster advertises: it cannot be reached: Connection refused".into()
                ),
                (TroubleKind::Away, "h:1: Failed to resolve 'h:1': Name or service not known".into()),
            ]
        );
        let advertised = heard(&["[thrd:b:9/1]: b:9/1: Connect to ipv4#1.2.3.4:9 failed: No route to host"]);
        assert!(
            advertised[0].1.starts_with("b:9, the address that the cluster advertises"),
            "{advertised:?}"
        );
    }

    #[test]
    fn a_broker_that_went_away_is_no_longer_taken_for_one_of_another_protocol() {
        let begin = "[thrd:b:9/bootstrap]: b:9/bootstrap: ";
        let odd = format!(
            "{begin}Disconnected: requesting ApiVersion: might be caused by incorrect security.protocol configuration (connecting to a SSL listener?) or broker version is < 0.10"
        );
        let away = format!("{begin}Connect to ipv4#1.2.3.4:9 failed: Connection refused");
        assert_eq!(heard(&[&odd])[0].0, TroubleKind::OtherProtocol);
        assert_eq!(heard(&[&odd, &away])[0].0, TroubleKind::Away);
    }

    #[test]
    fn a_handshake_that_the_other_side_ends_looks_like_a_plaintext_port_however_it_is_told() {
        // K18
        let begin = "[thrd:ssl://b:9/bootstrap]: ssl://b:9/bootstrap: ";
        let first = format!(
            "{begin}SSL handshake failed: Disconnected: SSL connection closed by peer: connecting to a PLAINTEXT broker listener? (after 2ms in state SSL_HANDSHAKE)"
        );
        let second =
            format!("{begin}Disconnected: SSL connection closed by peer (after 0ms in state SSL_HANDSHAKE)");
        for lines in [[first.as_str(), &second], [&second, &first]] {
            assert_eq!(heard(&lines)[0].0, TroubleKind::OtherProtocol, "{lines:?}");
        }
        let running =
            format!("{begin}Disconnected: SSL connection closed by peer (after 9000ms in state UP)");
        assert_eq!(heard(&[&running])[0].0, TroubleKind::Away);
    }

    #[test]
    fn a_port_that_ends_plaintext_connections_wants_tls_or_a_login() {
        // K18
        let text = |state: &str| {
            heard(&[&format!(
                "[thrd:b:9/bootstrap]: b:9/bootstrap: Disconnected: connection closed by peer: receive 0 after POLLIN (after 3ms in state {state})"
            )])
            .remove(0)
        };
        for (state, wanted) in [("APIVERSION_QUERY", "want TLS"), ("UP", "want a login")] {
            let (kind, text) = text(state);
            assert!(kind == TroubleKind::OtherProtocol && text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn a_certificate_is_refused_with_what_is_wrong_with_it() {
        // K18
        let troubles = Troubles::default();
        troubles.certificate_refused("b:9", 62);
        troubles.connection_failed(
            "[thrd:ssl://b:9/bootstrap]: ssl://b:9/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate could not be verified, verify that ssl.ca.location is correctly configured",
        );
        let all = troubles.all();
        assert_eq!(all[0].kind, TroubleKind::Refused);
        assert!(all[0].text.contains("another host name"), "{}", all[0]);
    }
}
