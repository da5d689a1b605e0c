//! A broker with two listeners beside the one in plaintext that the harness uses: one wants TLS and a login, the other
//! TLS and a certificate of the client.
//!
//! Its certificate is made by the JDK's `keytool`, signs itself, and names `localhost` only: clients that come by
//! 127.0.0.1 meet a certificate of another host. A login by token takes every token that has not ended, signed or not.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::broker::{Extras, Listener};
use crate::line::Line;
use crate::{Broker, Kafka, Scratch, ports, process};

/// The user that logs in with SCRAM.
pub const SCRAM_USER: &str = "scram-user";
/// Its password.
pub const SCRAM_PASSWORD: &str = "scram-pass-4711";
/// The user that logs in with PLAIN.
pub const PLAIN_USER: &str = "plain-user";
/// Its password.
pub const PLAIN_PASSWORD: &str = "plain-pass-0815";

/// For key stores; it guards nothing.
const STORE_PASSWORD: &str = "changeit";

/// A broker with a `SASL_SSL` listener.
pub struct SecureBroker {
    broker: Broker,
    port: u16,
    mutual_port: u16,
    files: Scratch,
}

impl SecureBroker {
    /// Starts one.
    pub fn start(line: Line) -> SecureBroker {
        let files = Scratch::new("secure");
        let (port, mutual_port) = (ports::free(), ports::free());
        make_certificate(&files, "broker", "localhost");
        make_certificate(&files, "stranger", "localhost");
        make_certificate(&files, "client", "localhost");
        let store = files.join("broker.p12").display().to_string();
        let client = files.join("client.pem").display().to_string();
        let on = |key: &str| format!("listener.name.secure.{key}");
        let mutual = |key: &str| format!("listener.name.mutual.{key}");
        let plain = format!(
            "org.apache.kafka.common.security.plain.PlainLoginModule required user_{PLAIN_USER}=\"{PLAIN_PASSWORD}\";"
        );
        let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
        let bearer = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;";
        let lines = [
            (on("ssl.keystore.type"), "PKCS12"),
            (on("ssl.keystore.location"), &store),
            (on("ssl.keystore.password"), STORE_PASSWORD),
            (on("ssl.key.password"), STORE_PASSWORD),
            (on("sasl.enabled.mechanisms"), "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"),
            (on("plain.sasl.jaas.config"), &plain),
            (on("scram-sha-256.sasl.jaas.config"), scram),
            (on("scram-sha-512.sasl.jaas.config"), scram),
            (on("oauthbearer.sasl.jaas.config"), bearer),
            // A connection ends with the token that it was opened with, unless the client logs in again.
            (on("oauthbearer.connections.max.reauth.ms"), "3600000"),
            (mutual("ssl.keystore.type"), "PKCS12"),
            (mutual("ssl.keystore.location"), &store),
            (mutual("ssl.keystore.password"), STORE_PASSWORD),
            (mutual("ssl.key.password"), STORE_PASSWORD),
            (mutual("ssl.client.auth"), "required"),
            (mutual("ssl.truststore.type"), "PEM"),
            (mutual("ssl.truststore.location"), &client),
        ];
        let properties: Vec<(&str, &str)> = lines.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        let users: Vec<String> = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
            .map(|mechanism| format!("{mechanism}=[name={SCRAM_USER},password={SCRAM_PASSWORD}]"))
            .into();
        let format: Vec<&str> = users.iter().flat_map(|user| ["--add-scram", user]).collect();
        let secure = Listener {
            name: "SECURE".into(),
            protocol: "SASL_SSL",
            port,
            advertised: format!("localhost:{port}"),
        };
        let mutual = Listener {
            name: "MUTUAL".into(),
            protocol: "SSL",
            port: mutual_port,
            advertised: format!("localhost:{mutual_port}"),
        };
        let listeners = vec![secure, mutual];
        let broker = Broker::start_with(Extras {
            line,
            properties: &properties,
            listeners,
            format: &format,
            ..Extras::default()
        });
        SecureBroker { broker, port, mutual_port, files }
    }

    /// The cluster by its listener in plaintext, without a login.
    pub fn kafka(&self) -> &Kafka {
        self.broker.kafka()
    }

    /// The listener with TLS and login, by the name in its certificate.
    pub fn address(&self) -> String {
        format!("localhost:{}", self.port)
    }

    /// The listener that wants a certificate of the client.
    pub fn mutual_address(&self) -> String {
        format!("localhost:{}", self.mutual_port)
    }

    /// Certificate and private key of the client that [`SecureBroker::mutual_address`] knows.
    pub fn client_files(&self) -> (PathBuf, PathBuf) {
        (self.files.join("client.pem"), self.private_key("client"))
    }

    /// Certificate and private key of a client that it does not know.
    pub fn stranger_files(&self) -> (PathBuf, PathBuf) {
        (self.files.join("stranger.pem"), self.private_key("stranger"))
    }

    /// `keytool` keeps private keys to itself; the JDK's library does not.
    fn private_key(&self, name: &str) -> PathBuf {
        const PROGRAM: &str = r#"
            import java.io.FileInputStream;
            import java.security.KeyStore;
            import java.util.Base64;
            class PrivateKey {
                public static void main(String[] of) throws Exception {
                    KeyStore store = KeyStore.getInstance("PKCS12");
                    store.load(new FileInputStream(of[0]), of[1].toCharArray());
                    byte[] key = store.getKey(of[2], of[1].toCharArray()).getEncoded();
                    System.out.println("-----BEGIN PRIVATE KEY-----");
                    System.out.println(Base64.getMimeEncoder(64, new byte[] {10}).encodeToString(key));
                    System.out.println("-----END PRIVATE KEY-----");
                }
            }"#;
        let program = self.files.write("PrivateKey.java", PROGRAM);
        let store = self.files.join(&format!("{name}.p12"));
        let output = process::run(Command::new("java").arg(program).arg(store).args([STORE_PASSWORD, name]));
        assert!(output.status.success(), "the key of {name}: {}", String::from_utf8_lossy(&output.stderr));
        self.files.write(&format!("{name}.key"), &String::from_utf8_lossy(&output.stdout))
    }

    /// The listener with TLS and login, by a name that is not in its certificate.
    pub fn address_of_another_name(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A listener in plaintext that answers, and the address that it advertises, where nothing listens.
    pub fn misleading(&self) -> (String, String) {
        self.broker.misleading()
    }

    /// The authority that signed the broker's certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.files.join("broker.pem")
    }

    /// One that did not.
    pub fn other_ca_file(&self) -> PathBuf {
        self.files.join("stranger.pem")
    }

    /// A new file with a password, as an editor leaves it.
    pub fn password_file(&self, password: &str) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("password-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.files.write(&name, &format!("{password}\n"))
    }
}

/// Makes a certificate for `host` that signs itself: `name.p12` with the key, and `name.pem` without.
fn make_certificate(files: &Scratch, name: &str, host: &str) {
    let store = files.join(&format!("{name}.p12")).display().to_string();
    let subject = format!("CN={name}");
    let names = format!("SAN=dns:{host}");
    let key: &[&str] = &[
        "-genkeypair",
        "-alias",
        name,
        "-keyalg",
        "EC",
        "-groupname",
        "secp256r1",
        "-dname",
        &subject,
        "-ext",
        &names,
        "-validity",
        "2",
    ];
    let file = files.join(&format!("{name}.pem")).display().to_string();
    let export: &[&str] = &["-exportcert", "-rfc", "-alias", name, "-file", &file];
    for arguments in [key, export] {
        let output = process::run(Command::new("keytool").args(arguments).args([
            "-keystore",
            &store,
            "-storetype",
            "PKCS12",
            "-storepass",
            STORE_PASSWORD,
        ]));
        assert!(
            output.status.success(),
            "keytool {arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
