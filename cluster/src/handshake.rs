//! The handshake of one connection: a pure state machine.
//!
//! It survives whatever connects to an open port: probes, HTTP requests, garbage, silence, processes of
//! another flow, build or shape, an impostor without the secret. It allocates no more than a hello needs,
//! whatever a stranger claims.
//!
//! | step | dialer | acceptor |
//! |---|---|---|
//! | 1 | preamble and [`Hello`] | |
//! | 2 | | preamble and hello |
//! | 3, with a secret | proof | proof |
//! | 4 | verdict | |
//! | 5 | | asks its own process whether the seat is free, then verdict |
//!
//! The preamble is 8 bytes of magic, the protocol version and the length of the hello (two bytes each, big
//! endian). A proof is HMAC-SHA256 with the shared secret over the sender's role and the digest of both
//! hellos, whose nonces are fresh. Both sides compare all fields by themselves, so both can print both
//! values. The acceptor takes its seat before it sends its verdict: a dialer that is established knows that
//! the acceptor is, too.
//!
//! With a secret, a process that did not prove that it knows it cannot end this one: it is only turned away.

use crate::identity::{
    BUILD_ID_BYTES_MAX, CLUSTER_ID_BYTES_MAX, IN_COMMON_BYTES_MAX, Secret, in_common_bytes,
};
use crate::spec::{PROCESSES_MAX, WORKERS_PER_PROCESS_MAX};
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tidegate_recovery::{FlowFingerprint, Generation, ProcessIndex, RunId};

/// First bytes of every connection.
pub const MAGIC: [u8; 8] = *b"tidegate";
/// Version of the protocol between processes.
pub const PROTOCOL_VERSION: u16 = 1;

const PREAMBLE_BYTES: usize = 12;
const HELLO_BYTES_MAX: usize = 4096;
const PROOF_BYTES: usize = 32;
const VERDICT_BYTES_MAX: usize = 1024;
const RETRY_TEXT_BYTES_MAX: usize = 256;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Heartbeats and the messages of the bring-up.
    Control,
    /// Timely's messages.
    Data,
    /// Only to learn who listens at an address that is taken.
    Probe,
}

/// All that a process says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Id of the cluster: the flow's name.
    pub cluster_id: String,
    /// What shapes the flow's state and routing.
    pub fingerprint: FlowFingerprint,
    /// The build of the program.
    pub build: String,
    /// What else must be the same, by name.
    pub in_common: BTreeMap<String, String>,
    /// Number of processes.
    pub processes: u32,
    /// Worker threads per process.
    pub workers_per_process: u32,
    /// The sender.
    pub index: ProcessIndex,
    /// The process that the sender means to talk to.
    pub target: ProcessIndex,
    /// The sender's run.
    pub run_id: RunId,
    /// The highest generation that the sender was part of.
    pub generation: Generation,
    /// What the dialer wants of the connection.
    pub purpose: Purpose,
    /// Whether the sender has a secret.
    pub has_secret: bool,
    /// Fresh random bytes.
    pub nonce: [u8; 32],
}

impl Hello {
    fn is_plausible(&self) -> bool {
        self.cluster_id.len() <= CLUSTER_ID_BYTES_MAX
            && self.build.len() <= BUILD_ID_BYTES_MAX
            && in_common_bytes(&self.in_common) <= IN_COMMON_BYTES_MAX
            && (1..=PROCESSES_MAX as u32).contains(&self.processes)
            && (1..=WORKERS_PER_PROCESS_MAX as u32).contains(&self.workers_per_process)
            && self.index.0 < self.processes
            && self.target.0 < self.processes
    }
}

/// A field in which two processes differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the field.
    pub field: String,
    /// The value of this process.
    pub here: String,
    /// The value of the other one.
    pub there: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {} here and {} there", self.field, self.here, self.there)
    }
}

/// Why a process that belongs to the cluster is turned away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The fields differ; each side sees in which.
    Differs,
    /// Another run, alive, has the index.
    IndexTaken {
        /// That run.
        holder: RunId,
    },
    /// The caller belongs to a generation that is over.
    OldGeneration {
        /// The caller's.
        named: Generation,
        /// The one that runs.
        running: Generation,
    },
    /// Not now; the caller may try again.
    Retry(String),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Verdict {
    Accept,
    Refuse(Refusal),
}

/// How a handshake fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Whoever is there does not speak the protocol, or not to its end.
    Stranger(String),
    /// A process of Tidegate that disagrees.
    Differs {
        /// In what.
        differences: Vec<Difference>,
        /// Whether the other side may end this process by it: without a secret, or after its proof.
        proven: bool,
    },
    /// The other side agrees and turns this one away, or the other way round.
    Refused(Refusal),
}

/// What happens to a handshake.
#[derive(Debug)]
pub enum Event<'a> {
    /// Bytes arrived, in any portion.
    Bytes(&'a [u8]),
    /// The connection was closed or broke.
    Closed(String),
    /// The deadline passed.
    Expired,
    /// The answer to [`Action::Admit`].
    Admit(Result<(), Refusal>),
}

/// What the shell has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Decide whether the caller gets its seat; answer with [`Event::Admit`].
    Admit(Hello),
    /// The connection belongs to the peer. Nothing more happens.
    Established(Hello),
    /// Close the connection. Nothing more happens.
    Fail(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Dialer,
    Acceptor,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Preamble,
    Hello { length: usize },
    Proof,
    VerdictLength,
    Verdict { length: usize },
    Admission,
    Over,
}

/// One side of the handshake of one connection.
#[derive(Debug)]
pub struct Handshake {
    role: Role,
    me: Hello,
    secret: Option<Secret>,
    state: State,
    buffer: Vec<u8>,
    sent: Vec<u8>,
    peer: Option<(Hello, Vec<u8>)>,
}

impl Handshake {
    /// The dialer's side, and its first actions. `me.target` is the process that is expected there.
    pub fn dial(me: Hello, secret: Option<Secret>) -> (Handshake, Vec<Action>) {
        let mut handshake = Handshake::new(Role::Dialer, me, secret);
        let first = handshake.introduction();
        (handshake, vec![Action::Send(first)])
    }

    /// The acceptor's side. `me.target` and `me.purpose` are overwritten by what the dialer says.
    pub fn accept(me: Hello, secret: Option<Secret>) -> Handshake {
        Handshake::new(Role::Acceptor, me, secret)
    }

    fn new(role: Role, mut me: Hello, secret: Option<Secret>) -> Handshake {
        me.has_secret = secret.is_some();
        Handshake {
            role,
            me,
            secret,
            state: State::Preamble,
            buffer: Vec::new(),
            sent: Vec::new(),
            peer: None,
        }
    }

    /// How many bytes to read next, at most: reading more would take bytes of what follows the handshake.
    pub fn wants(&self) -> usize {
        let whole = match self.state {
            State::Preamble => PREAMBLE_BYTES,
            State::Hello { length } | State::Verdict { length } => length,
            State::Proof => PROOF_BYTES,
            State::VerdictLength => 2,
            State::Admission | State::Over => 0,
        };
        whole.saturating_sub(self.buffer.len())
    }

    /// Whether the handshake has come to its end.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Takes an event in and says what to do.
    pub fn on(&mut self, event: Event<'_>) -> Vec<Action> {
        if self.state == State::Over {
            return Vec::new();
        }
        let mut actions = Vec::new();
        let result = match event {
            Event::Bytes(bytes) => self.bytes(bytes, &mut actions),
            Event::Closed(how) => Err(self.stranger(&how)),
            Event::Expired => Err(self.stranger("did not finish its handshake in time")),
            Event::Admit(answer) => self.admitted(answer, &mut actions),
        };
        if let Err(failure) = result {
            self.state = State::Over;
            actions.push(Action::Fail(failure));
        }
        actions
    }

    fn stranger(&self, what: &str) -> Failure {
        Failure::Stranger(if self.state == State::Preamble && self.buffer.is_empty() {
            format!("{what} and said nothing")
        } else {
            what.to_string()
        })
    }

    fn bytes(&mut self, mut bytes: &[u8], actions: &mut Vec<Action>) -> Result<(), Failure> {
        while !bytes.is_empty() {
            let wants = self.wants();
            if wants == 0 {
                return Err(Failure::Stranger("spoke when it was not its turn".into()));
            }
            let (now, rest) = bytes.split_at(wants.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = rest;
            // What cannot become the magic is turned away at once, not when it times out.
            if self.state == State::Preamble {
                let seen = self.buffer.len().min(MAGIC.len());
                if self.buffer[..seen] != MAGIC[..seen] && (seen == MAGIC.len() || !http_like(&self.buffer)) {
                    return Err(Failure::Stranger(describe(&self.buffer)));
                }
            }
            if self.wants() == 0 {
                let message = std::mem::take(&mut self.buffer);
                self.message(&message, actions)?;
            }
        }
        Ok(())
    }

    fn message(&mut self, message: &[u8], actions: &mut Vec<Action>) -> Result<(), Failure> {
        match self.state {
            State::Preamble => self.preamble(message, actions),
            State::Hello { .. } => self.hello(message, actions),
            State::Proof => self.proof(message, actions),
            State::VerdictLength => {
                let length = usize::from(u16::from_be_bytes([message[0], message[1]]));
                if length == 0 || length > VERDICT_BYTES_MAX {
                    return Err(Failure::Stranger(format!("sent a verdict of {length} bytes")));
                }
                self.state = State::Verdict { length };
                Ok(())
            }
            State::Verdict { .. } => self.verdict(message, actions),
            State::Admission | State::Over => Err(Failure::Stranger("spoke out of turn".into())),
        }
    }

    fn preamble(&mut self, message: &[u8], actions: &mut Vec<Action>) -> Result<(), Failure> {
        if message[..8] != MAGIC {
            return Err(Failure::Stranger(describe(message)));
        }
        let version = u16::from_be_bytes([message[8], message[9]]);
        if version != PROTOCOL_VERSION {
            if self.role == Role::Acceptor {
                // So that the other side can print both values, too.
                let introduction = self.introduction();
                actions.push(Action::Send(introduction));
            }
            return Err(Failure::Differs {
                differences: vec![Difference {
                    field: "protocol version".into(),
                    here: PROTOCOL_VERSION.to_string(),
                    there: version.to_string(),
                }],
                proven: self.secret.is_none(),
            });
        }
        let length = usize::from(u16::from_be_bytes([message[10], message[11]]));
        if length == 0 || length > HELLO_BYTES_MAX {
            return Err(Failure::Stranger(format!("sent a hello of {length} bytes")));
        }
        self.state = State::Hello { length };
        Ok(())
    }

    fn hello(&mut self, message: &[u8], actions: &mut Vec<Action>) -> Result<(), Failure> {
        let hello: Hello = match postcard::take_from_bytes(message) {
            Ok((hello, [])) => hello,
            Ok(_) | Err(_) => return Err(Failure::Stranger("sent a hello that cannot be read".into())),
        };
        if !hello.is_plausible() {
            return Err(Failure::Stranger("sent a hello that makes no sense".into()));
        }
        if hello.run_id == self.me.run_id {
            return Err(Failure::Stranger("is this process itself".into()));
        }
        if self.role == Role::Acceptor {
            self.me.target = hello.index;
            self.me.purpose = hello.purpose;
            let introduction = self.introduction();
            actions.push(Action::Send(introduction));
        }
        let both_secret = self.secret.is_some() && hello.has_secret;
        self.peer = Some((hello, message.to_vec()));
        if both_secret {
            if let Some(proof) = self.own_proof() {
                actions.push(Action::Send(proof));
            }
            self.state = State::Proof;
            Ok(())
        } else {
            self.compare(self.secret.is_none(), actions)
        }
    }

    fn proof(&mut self, message: &[u8], actions: &mut Vec<Action>) -> Result<(), Failure> {
        let from = match self.role {
            Role::Dialer => Role::Acceptor,
            Role::Acceptor => Role::Dialer,
        };
        if self.mac(from).is_some_and(|mac| mac.verify_slice(message).is_ok()) {
            self.compare(true, actions)
        } else {
            Err(Failure::Differs {
                differences: vec![Difference {
                    field: "the shared secret".into(),
                    here: "one value".into(),
                    there: "another".into(),
                }],
                proven: false,
            })
        }
    }

    /// Compares the fields and, if all agree, goes on to the verdicts.
    fn compare(&mut self, proven: bool, actions: &mut Vec<Action>) -> Result<(), Failure> {
        let Some((peer, _)) = &self.peer else {
            return Err(Failure::Stranger("has not said hello".into()));
        };
        let differences = differences(&self.me, peer, self.role);
        if !differences.is_empty() {
            actions.push(send_verdict(&Verdict::Refuse(Refusal::Differs)));
            return Err(Failure::Differs { differences, proven });
        }
        if self.role == Role::Dialer {
            actions.push(send_verdict(&Verdict::Accept));
        } else if peer.index == self.me.index {
            let refusal = Refusal::IndexTaken { holder: self.me.run_id };
            actions.push(send_verdict(&Verdict::Refuse(refusal.clone())));
            return Err(Failure::Refused(refusal));
        } else if peer.index < self.me.index {
            return Err(Failure::Stranger("connected in the wrong direction".into()));
        }
        self.state = State::VerdictLength;
        Ok(())
    }

    fn verdict(&mut self, message: &[u8], actions: &mut Vec<Action>) -> Result<(), Failure> {
        let verdict: Verdict = match postcard::take_from_bytes(message) {
            Ok((verdict, [])) => verdict,
            Ok(_) | Err(_) => return Err(Failure::Stranger("sent a verdict that cannot be read".into())),
        };
        match verdict {
            Verdict::Refuse(Refusal::Differs) => {
                Err(Failure::Stranger("sees a difference that this side does not see".into()))
            }
            Verdict::Refuse(refusal) => Err(Failure::Refused(refusal)),
            Verdict::Accept => {
                let Some((peer, _)) = &self.peer else {
                    return Err(Failure::Stranger("has not said hello".into()));
                };
                let peer = peer.clone();
                match self.role {
                    Role::Dialer => {
                        self.state = State::Over;
                        actions.push(Action::Established(peer));
                    }
                    Role::Acceptor => {
                        self.state = State::Admission;
                        actions.push(Action::Admit(peer));
                    }
                }
                Ok(())
            }
        }
    }

    fn admitted(&mut self, answer: Result<(), Refusal>, actions: &mut Vec<Action>) -> Result<(), Failure> {
        let (State::Admission, Some((peer, _))) = (&self.state, &self.peer) else {
            return Err(Failure::Stranger("was admitted without having asked".into()));
        };
        match answer {
            Ok(()) => {
                actions.push(send_verdict(&Verdict::Accept));
                actions.push(Action::Established(peer.clone()));
                self.state = State::Over;
                Ok(())
            }
            Err(mut refusal) => {
                if let Refusal::Retry(text) = &mut refusal {
                    *text = text.chars().take(RETRY_TEXT_BYTES_MAX / 4).collect();
                }
                actions.push(send_verdict(&Verdict::Refuse(refusal.clone())));
                Err(Failure::Refused(refusal))
            }
        }
    }

    /// Preamble and hello of this side; remembers the hello for the proofs.
    fn introduction(&mut self) -> Vec<u8> {
        self.sent = postcard::to_stdvec(&self.me).expect("a hello is plain data");
        assert!(self.sent.len() <= HELLO_BYTES_MAX, "the lengths of a hello's texts are limited");
        let mut bytes = Vec::with_capacity(PREAMBLE_BYTES + self.sent.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&PROTOCOL_VERSION.to_be_bytes());
        bytes.extend_from_slice(&(self.sent.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&self.sent);
        bytes
    }

    fn own_proof(&self) -> Option<Vec<u8>> {
        Some(self.mac(self.role)?.finalize().into_bytes().to_vec())
    }

    /// The code over both hellos that the side with role `by` proves its knowledge with.
    fn mac(&self, by: Role) -> Option<Hmac<Sha256>> {
        let secret = self.secret.as_ref()?;
        let (_, received) = self.peer.as_ref()?;
        let (dialer, acceptor) = match self.role {
            Role::Dialer => (&self.sent, received),
            Role::Acceptor => (received, &self.sent),
        };
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.bytes()).ok()?;
        mac.update(&MAGIC);
        mac.update(&[match by {
            Role::Dialer => 0,
            Role::Acceptor => 1,
        }]);
        mac.update(&Sha256::digest(dialer));
        mac.update(&Sha256::digest(acceptor));
        Some(mac)
    }
}

fn send_verdict(verdict: &Verdict) -> Action {
    let body = postcard::to_stdvec(verdict).expect("a verdict is plain data");
    let mut bytes = (body.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(&body);
    Action::Send(bytes)
}

fn differences(me: &Hello, peer: &Hello, role: Role) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut compare = |field: &str, here: String, there: String| {
        if here != there {
            found.push(Difference { field: field.to_owned(), here, there });
        }
    };
    let secret = |has| if has { "set" } else { "not set" }.to_string();
    compare("the shared secret", secret(me.has_secret), secret(peer.has_secret));
    compare("the flow", me.cluster_id.clone(), peer.cluster_id.clone());
    compare("the flow's fingerprint", me.fingerprint.to_string(), peer.fingerprint.to_string());
    compare("the build", me.build.clone(), peer.build.clone());
    let names: BTreeSet<&String> = me.in_common.keys().chain(peer.in_common.keys()).collect();
    for name in names {
        let value =
            |hello: &Hello| hello.in_common.get(name).map_or_else(|| "not known".to_owned(), String::clone);
        compare(name, value(me), value(peer));
    }
    compare("the number of processes", me.processes.to_string(), peer.processes.to_string());
    compare(
        "the number of workers per process",
        me.workers_per_process.to_string(),
        peer.workers_per_process.to_string(),
    );
    // The lists of addresses are never compared: whoever is reached at a place must have its index.
    match role {
        Role::Dialer => {
            compare("the process index of this place", me.target.to_string(), peer.index.to_string())
        }
        Role::Acceptor => {
            compare("the process index of this place", me.index.to_string(), peer.target.to_string())
        }
    }
    found
}

const HTTP_METHODS: [&[u8]; 7] = [b"GET ", b"POST ", b"HEAD ", b"PUT ", b"OPTIONS ", b"CONNECT ", b"PRI "];

/// Whether the bytes are, or may become, an HTTP request. Worth a better word in the log.
fn http_like(bytes: &[u8]) -> bool {
    HTTP_METHODS.iter().any(|method| {
        let seen = bytes.len().min(method.len());
        bytes[..seen] == method[..seen]
    })
}

fn describe(bytes: &[u8]) -> String {
    if http_like(bytes) {
        "sent an HTTP request".into()
    } else if bytes.starts_with(&[0x16, 0x03]) {
        "began a TLS session".into()
    } else {
        let shown: String = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("does not speak the protocol (its first bytes are {shown})")
    }
}
