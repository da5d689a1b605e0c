//! [`TokenSource`]: where the token of an `OAUTHBEARER` login comes from.
//!
//! The library asks for a token when a client is made and again when four fifths of the token's life are over. It is
//! asked for on a thread of the client that nobody waits for: what was logged in goes on until its token ends. A token
//! that cannot be had is asked for again after ten seconds.
//!
//! Every worker has clients of its own, and they ask at nearly the same time: the first runs the command, the others
//! get its token for as long as half of its life is left.
//!
//! A token is a secret, and so is whatever a command prints: neither is ever shown, not even in an error.

use crate::clock::wall_ms;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where tokens come from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenSource {
    /// A program and its arguments; it prints the token to its stdout and ends with 0 within four seconds.
    Command(Vec<String>),
    /// A file that somebody else keeps up to date; it is read each time.
    File(PathBuf),
}

impl fmt::Debug for TokenSource {
    /// The arguments of a command may be secrets: they are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenSource::Command(words) => f.debug_tuple("Command").field(&words.first()).finish(),
            TokenSource::File(file) => f.debug_tuple("File").field(file).finish(),
        }
    }
}

/// A token and what the client must know of it.
#[derive(Clone)]
pub(super) struct Token {
    /// The token itself.
    pub(super) text: String,
    /// Whose it is, as far as it says.
    pub(super) subject: String,
    /// When it ends, in milliseconds since the Unix epoch.
    pub(super) expires_ms: i64,
}

/// A command must have printed its token within this time: a start ends within ten seconds when it has not.
const COMMAND_WITHIN: Duration = Duration::from_secs(4);
/// How often a command that runs is looked at.
const COMMAND_LOOK: Duration = Duration::from_millis(10);
/// Brokers take no longer tokens.
const TOKEN_BYTES_MAX: usize = 1 << 20;

/// The newest token of each command, with the time at which half of its life is over.
static NEWEST: Mutex<BTreeMap<TokenSource, (Token, i64)>> = Mutex::new(BTreeMap::new());

impl TokenSource {
    /// The value of the property `sasl.oauthbearer.config`, which the library hands back when it wants a token.
    pub fn to_property(&self) -> String {
        serde_json::to_string(self).expect("text and paths of text can be written as JSON")
    }

    /// The source in the value of that property.
    pub(super) fn from_property(text: &str) -> Result<TokenSource, String> {
        serde_json::from_str(text).map_err(|_| "it is not known where tokens come from".to_owned())
    }

    /// A token that is not over yet.
    pub(super) fn token(&self) -> Result<Token, String> {
        match self {
            TokenSource::File(file) => read(file),
            TokenSource::Command(words) => {
                // Held while the command runs: another client waits for this token instead of asking for its own.
                let mut newest = NEWEST.lock().unwrap_or_else(PoisonError::into_inner);
                let begin = wall_ms();
                match newest.get(self) {
                    Some((token, half)) if begin < *half => Ok(token.clone()),
                    _ => {
                        let token = run(words)?;
                        let half = begin + (token.expires_ms - begin) / 2;
                        newest.insert(self.clone(), (token.clone(), half));
                        Ok(token)
                    }
                }
            }
        }
    }
}

fn read(file: &Path) -> Result<Token, String> {
    let text = std::fs::read(file)
        .map_err(|error| format!("the token file {} cannot be read: {error}", file.display()))?;
    parse(&text, wall_ms()).map_err(|what| format!("the token file {} {what}", file.display()))
}

fn run(words: &[String]) -> Result<Token, String> {
    let (program, arguments) = words.split_first().ok_or("the token command has no words")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("the token command `{program}` cannot be started: {error}"))?;
    let end = Instant::now() + COMMAND_WITHIN;
    let stdout = child.stdout.take().expect("the output was asked for");
    let (sender, printed) = crossbeam_channel::bounded(1);
    // A thread of its own, because a read has no deadline. It ends with the output, at the latest when the command is
    // killed.
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let outcome = stdout.take(TOKEN_BYTES_MAX as u64 + 1).read_to_end(&mut text).map(|_| text);
        // Nobody listens when the deadline has passed.
        drop(sender.send(outcome));
    });
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => std::thread::sleep(COMMAND_LOOK),
            late => {
                // What was killed is waited for, so that nothing of it stays; it can only be gone already.
                drop(child.kill().and_then(|()| child.wait()));
                return Err(match late {
                    Ok(_) => format!("the token command `{program}` did not end within {COMMAND_WITHIN:?}"),
                    Err(error) => format!("the token command `{program}` cannot be waited for: {error}"),
                });
            }
        }
    };
    if !status.success() {
        return Err(format!(
            "the token command `{program}` ended with {status}; run it by hand to see why (what it prints is not shown here)"
        ));
    }
    match printed.recv_deadline(end) {
        Ok(Ok(text)) => {
            parse(&text, wall_ms()).map_err(|what| format!("the token command `{program}` {what}"))
        }
        Ok(Err(error)) => Err(format!("the output of the token command `{program}` cannot be read: {error}")),
        Err(_) => {
            Err(format!("something that the token command `{program}` left behind holds its output open"))
        }
    }
}

/// Reads a token; the error goes on behind "the token command `x`" or "the token file x".
fn parse(text: &[u8], now_ms: i64) -> Result<Token, String> {
    #[derive(Deserialize)]
    struct Claims {
        exp: Option<f64>,
        sub: Option<String>,
    }
    const NO_TOKEN: &str =
        "gives no JSON web token: three parts with dots between them are expected, and nothing else";
    if text.len() > TOKEN_BYTES_MAX {
        return Err(format!(
            "gives more than {TOKEN_BYTES_MAX} bytes: a JSON web token is expected, and nothing else"
        ));
    }
    let text = std::str::from_utf8(text).map_err(|_| NO_TOKEN.to_owned())?.trim();
    let mut parts = text.split('.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(NO_TOKEN.to_owned());
    };
    let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).map_err(|_| NO_TOKEN.to_owned())?;
    let claims: Claims = serde_json::from_slice(&claims).map_err(|_| NO_TOKEN.to_owned())?;
    let expires = claims.exp.ok_or("gives a token that does not say when it ends (`exp`)")?;
    let expires_ms = (expires * 1000.0) as i64;
    if expires_ms <= now_ms {
        return Err(format!("gives a token that ended {} s ago", (now_ms - expires_ms) / 1000));
    }
    Ok(Token {
        text: text.to_owned(),
        subject: claims.sub.unwrap_or_else(|| "tidegate".to_owned()),
        expires_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_token_says_whose_it_is_and_when_it_ends() {
        let found = parse(format!("{}\n", token(r#"{"sub":"me","exp":20.5}"#)).as_bytes(), 20_000).unwrap();
        assert_eq!((found.subject.as_str(), found.expires_ms), ("me", 20_500));
        assert!(!found.text.contains('\n'));
    }

    #[test]
    fn what_is_no_token_is_refused_and_never_shown() {
        let secret = "s3cret";
        for (text, why) in [
            (secret.to_owned(), "no JSON web token"),
            (format!("{secret}.{secret}.{secret}"), "no JSON web token"),
            (token(r#"{"sub":"s3cret"}"#), "does not say when it ends"),
            (token(r#"{"sub":"s3cret","exp":17}"#), "ended 3 s ago"),
            (String::new(), "no JSON web token"),
        ] {
            let error = parse(text.as_bytes(), 20_000).map(|_| ()).unwrap_err();
            assert!(error.contains(why) && !error.contains(secret), "{text}: {error}");
        }
    }

    #[test]
    fn a_command_that_fails_hangs_or_is_not_there_is_told_within_its_time() {
        let shell = |script: &str| vec!["sh".to_owned(), "-c".into(), script.to_owned()];
        let begin = Instant::now();
        for (words, why) in [
            (shell("echo s3cret; exit 3"), "ended with exit status: 3"),
            (shell("exec sleep 60"), "did not end within 4s"),
            (vec!["/nowhere/token".into()], "cannot be started"),
            (vec![], "no words"),
        ] {
            let error = run(&words).map(|_| ()).unwrap_err();
            assert!(error.contains(why) && !error.contains("s3cret"), "{error}");
        }
        assert!(begin.elapsed() < Duration::from_secs(8));
    }

    #[test]
    fn clients_that_ask_at_the_same_time_share_the_token_of_one_run() {
        let directory = tempfile::tempdir().unwrap();
        let count = directory.path().join("count");
        let command = |lives_ms: i64| {
            let seconds = (wall_ms() + lives_ms) as f64 / 1000.0;
            let token = token(&format!(r#"{{"exp":{seconds}}}"#));
            let script = format!("echo run >> {}; echo {token}", count.display());
            TokenSource::Command(vec!["sh".into(), "-c".into(), script])
        };
        let runs = || std::fs::read_to_string(&count).unwrap_or_default().lines().count();
        let long = command(3_600_000);
        let (one, other) = (long.token().map(|t| t.text), long.token().map(|t| t.text));
        assert_eq!((one, runs()), (other, 1));
        // Half of its life is over when it is handed out: the next who asks gets another.
        let source = command(3_600_000);
        let taken = source.token().unwrap();
        NEWEST.lock().unwrap().insert(source.clone(), (taken, wall_ms() - 1));
        assert!(source.token().is_ok());
        assert_eq!(runs(), 3);
    }

    #[test]
    fn the_property_gives_the_source_back() {
        for source in [TokenSource::Command(vec!["a b".into(), "c".into()]), TokenSource::File("/x y".into())]
        {
            assert_eq!(TokenSource::from_property(&source.to_property()), Ok(source));
        }
        assert!(TokenSource::from_property("s3cret").unwrap_err().contains("where tokens come from"));
    }
}
