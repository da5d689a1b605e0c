//! A client of the library: its handle, its log, its metadata.

use super::token;
use super::trouble::{Trouble, Troubles};
use super::{Code, PartitionList};
use rdkafka_sys::bindings as sys;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a client is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Consumer,
    Producer,
}

/// Names and values in librdkafka's words.
pub(crate) type Properties = BTreeMap<String, String>;

/// One client of the library: a few threads and connections of its own. Dropping the last reference closes
/// it, which can take long while a broker is away: give it to the reaper.
pub(crate) struct Client {
    handle: NonNull<sys::rd_kafka_t>,
    kind: Kind,
    /// Read by the callbacks through the client's opaque pointer, hence boxed, and freed after the handle.
    log: Box<Log>,
}

// SAFETY: librdkafka's handle may be used and destroyed by any thread; all its functions lock. `Log` is Sync.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

/// A topic as the cluster describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicMetadata {
    pub(crate) name: String,
    pub(crate) error: Code,
    /// Ascending.
    pub(crate) partitions: Vec<i32>,
    /// Whether each of them has a leader.
    pub(crate) is_led: bool,
}

/// What the callbacks need: who speaks, what it said lately, and what it heard of its brokers.
pub(super) struct Log {
    client: String,
    said: Mutex<BTreeMap<String, (Instant, u64)>>,
    troubles: Troubles,
    /// Requests that got no answer and connections that broke.
    unanswered: AtomicU64,
}

/// The library repeats itself for as long as a broker is away; each kind of line appears this often.
const REPEAT_LOG_EVERY: Duration = Duration::from_secs(10);

impl Client {
    /// Makes a client. `events` is the set of event types that are to come as events and not as callbacks.
    pub(crate) fn new(kind: Kind, properties: &Properties, events: i32) -> Result<Arc<Client>, String> {
        let configuration = Configuration::new(properties).map_err(|errors| errors.join("; "))?;
        let name = properties.get("client.id").cloned().unwrap_or_default();
        let log = Box::new(Log {
            client: name,
            said: Mutex::default(),
            troubles: Troubles::default(),
            unanswered: AtomicU64::new(0),
        });
        let mut text = [0 as c_char; 512];
        // SAFETY: the configuration is a valid handle. The opaque pointer stays valid for the life of the
        // client: the box is moved into it (moving a box does not move its content) and dropped after
        // `rd_kafka_destroy_flags` returned, when no thread of the client is left to call back.
        // `rd_kafka_new` takes the configuration over only when it succeeds.
        let (handle, tokens) = unsafe {
            sys::rd_kafka_conf_set_opaque(configuration.0.as_ptr(), (&raw const *log).cast_mut().cast());
            sys::rd_kafka_conf_set_log_cb(configuration.0.as_ptr(), Some(on_log));
            sys::rd_kafka_conf_set_error_cb(configuration.0.as_ptr(), Some(on_error));
            sys::rd_kafka_conf_set_ssl_cert_verify_cb(configuration.0.as_ptr(), Some(on_certificate));
            let tokens = token::prepare(configuration.0.as_ptr(), properties);
            if events != 0 {
                sys::rd_kafka_conf_set_events(configuration.0.as_ptr(), events);
            }
            let kind = match kind {
                Kind::Consumer => sys::rd_kafka_type_t::RD_KAFKA_CONSUMER,
                Kind::Producer => sys::rd_kafka_type_t::RD_KAFKA_PRODUCER,
            };
            (sys::rd_kafka_new(kind, configuration.0.as_ptr(), text.as_mut_ptr(), text.len()), tokens)
        };
        let Some(handle) = NonNull::new(handle) else {
            return Err(text_of(&text));
        };
        std::mem::forget(configuration);
        let client = Arc::new(Client { handle, kind, log });
        if tokens {
            token::ask_in_background(&client)?;
        }
        if kind == Kind::Consumer && properties.contains_key("group.id") {
            // SAFETY: a valid consumer handle. Errors and log lines then come with the consumer's queue,
            // so that one queue has to be served.
            let code = Code::from(unsafe { sys::rd_kafka_poll_set_consumer(client.pointer()) });
            code.ok().map_err(|code| format!("the client could not be set up: {code}"))?;
        }
        Ok(client)
    }

    /// What is wrong with the properties, each by name; no broker is contacted.
    pub(crate) fn check(properties: &Properties) -> Vec<String> {
        Configuration::new(properties).err().unwrap_or_default()
    }

    pub(crate) fn pointer(&self) -> *mut sys::rd_kafka_t {
        self.handle.as_ptr()
    }

    /// Whether the client gave up for good, and why.
    pub(crate) fn fatal(&self) -> Option<String> {
        let mut text = [0 as c_char; 512];
        // SAFETY: a valid handle and a buffer with its length.
        let code =
            Code::from(unsafe { sys::rd_kafka_fatal_error(self.pointer(), text.as_mut_ptr(), text.len()) });
        (!code.is_ok()).then(|| format!("{code:?}: {}", text_of(&text)))
    }

    /// The code with which the client gave up for good.
    pub(crate) fn fatal_code(&self) -> Option<Code> {
        // SAFETY: a valid handle; without a buffer no text is written.
        let code = Code::from(unsafe { sys::rd_kafka_fatal_error(self.pointer(), ptr::null_mut(), 0) });
        (!code.is_ok()).then_some(code)
    }

    /// How often a request stayed without an answer or a connection broke. The library then sends some requests again by
    /// itself, and what it sent before may still arrive.
    pub(crate) fn unanswered(&self) -> u64 {
        self.log.unanswered.load(Ordering::SeqCst)
    }

    /// What the client last heard of each broker that it could not reach, the worst first.
    pub(crate) fn troubles(&self) -> Vec<Trouble> {
        self.log.troubles.all()
    }

    /// Reads the list and nothing else from now on. Does not wait for a broker.
    pub(crate) fn assign(&self, list: &PartitionList) -> Result<(), Code> {
        // SAFETY: valid handles; the list is copied.
        Code::from(unsafe { sys::rd_kafka_assign(self.pointer(), list.pointer()) }).ok()
    }

    /// Takes the partitions of the list out of the assignment and puts them back at their offsets. A partition
    /// that was stopped by an error cannot seek.
    pub(crate) fn reassign(&self, list: &PartitionList) -> Result<(), String> {
        // SAFETY: valid handles; both calls copy the list and return null or an error object that is ours.
        unsafe {
            error_text(sys::rd_kafka_incremental_unassign(self.pointer(), list.pointer()))?;
            error_text(sys::rd_kafka_incremental_assign(self.pointer(), list.pointer()))
        }
    }

    /// Reads the group's committed offsets into the list, waiting at most `timeout`.
    pub(crate) fn committed(&self, list: &mut PartitionList, timeout: Duration) -> Result<(), Code> {
        // SAFETY: valid handles; the call fills the list in before it returns.
        Code::from(unsafe { sys::rd_kafka_committed(self.pointer(), list.pointer(), millis(timeout)) }).ok()
    }

    /// Low and high watermark of a partition as last heard, without asking; negative where nothing was heard.
    pub(crate) fn cached_bounds(&self, topic: &CStr, partition: i32) -> Option<(i64, i64)> {
        let (mut low, mut high) = (-1, -1);
        // SAFETY: a valid handle, a string that ends, and two places to write to.
        let code = Code::from(unsafe {
            sys::rd_kafka_get_watermark_offsets(
                self.pointer(),
                topic.as_ptr(),
                partition,
                &mut low,
                &mut high,
            )
        });
        code.is_ok().then_some((low, high))
    }

    /// The id of the cluster, drawn when it was made; waits at most `timeout`.
    pub(crate) fn cluster_id(&self, timeout: Duration) -> Option<String> {
        // SAFETY: a valid handle. The answer is null or a string that ends and is ours; it is copied before it goes.
        unsafe {
            let text = sys::rd_kafka_clusterid(self.pointer(), millis(timeout));
            if text.is_null() {
                return None;
            }
            let id = CStr::from_ptr(text).to_string_lossy().into_owned();
            sys::rd_kafka_mem_free(self.pointer(), text.cast());
            Some(id)
        }
    }

    /// Describes one topic, or all, waiting at most `timeout`.
    pub(crate) fn metadata(
        &self,
        topic: Option<&str>,
        timeout: Duration,
    ) -> Result<Vec<TopicMetadata>, Code> {
        let topic = match topic {
            Some(name) => Some(super::Topic::new_borrowed(self, name)?),
            None => None,
        };
        let only = topic.as_ref().map_or(ptr::null_mut(), |topic| topic.pointer());
        let mut answer: *const sys::rd_kafka_metadata = ptr::null();
        // SAFETY: valid handles and a place for the answer, which is ours when the call succeeds. Its arrays
        // have the lengths that stand beside them. Error fields are read as numbers (see the module).
        unsafe {
            let all = c_int::from(topic.is_none());
            let code = sys::rd_kafka_metadata(self.pointer(), all, only, &mut answer, millis(timeout));
            Code::from(code).ok()?;
            let topics = array((*answer).topics, (*answer).topic_cnt)
                .iter()
                .map(|topic| {
                    let all = array(topic.partitions, topic.partition_cnt);
                    let mut partitions: Vec<i32> = all.iter().map(|one| one.id).collect();
                    partitions.sort_unstable();
                    TopicMetadata {
                        name: CStr::from_ptr(topic.topic).to_string_lossy().into_owned(),
                        error: Code((&raw const topic.err).cast::<i32>().read()),
                        partitions,
                        is_led: all.iter().all(|one| one.leader >= 0),
                    }
                })
                .collect();
            sys::rd_kafka_metadata_destroy(answer);
            Ok(topics)
        }
    }

    /// Throws away what a producer holds and has not sent, or not heard of. Only for a close: each record
    /// thrown away gets a failed delivery report.
    pub(crate) fn purge(&self) {
        let flags = sys::RD_KAFKA_PURGE_F_QUEUE | sys::RD_KAFKA_PURGE_F_INFLIGHT;
        // SAFETY: a valid handle.
        let code = Code::from(unsafe { sys::rd_kafka_purge(self.pointer(), flags) });
        if !code.is_ok() {
            tracing::warn!(error = %code, "the producer's queue could not be purged");
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A member of a group leaves it in a close, which waits for the coordinator. This client is never a
        // member, so there is nothing to leave.
        let flags = match self.kind {
            Kind::Consumer => sys::RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE,
            Kind::Producer => 0,
        };
        // SAFETY: the handle is valid and this is its only owner; queues, topics and messages inside it hold
        // an `Arc` of this client, so none is left.
        unsafe { sys::rd_kafka_destroy_flags(self.pointer(), flags) };
    }
}

/// A configuration that is not yet taken over by a client.
struct Configuration(NonNull<sys::rd_kafka_conf_t>);

impl Configuration {
    fn new(properties: &Properties) -> Result<Configuration, Vec<String>> {
        // SAFETY: no preconditions; the library aborts when it has no memory.
        let handle = unsafe { sys::rd_kafka_conf_new() };
        let configuration = Configuration(NonNull::new(handle).expect("a configuration is never null"));
        let mut errors = Vec::new();
        for (name, value) in properties {
            let (Ok(c_name), Ok(c_value)) = (CString::new(name.as_str()), CString::new(value.as_str()))
            else {
                errors.push(format!("property `{name}`: a zero byte is not allowed"));
                continue;
            };
            let mut text = [0 as c_char; 512];
            // SAFETY: a valid handle, strings that end, and a buffer with its length.
            let result = unsafe {
                sys::rd_kafka_conf_set(
                    configuration.0.as_ptr(),
                    c_name.as_ptr(),
                    c_value.as_ptr(),
                    text.as_mut_ptr(),
                    text.len(),
                )
            };
            if result != sys::rd_kafka_conf_res_t::RD_KAFKA_CONF_OK {
                errors.push(format!("property `{name}`: {}", text_of(&text)));
            }
        }
        if errors.is_empty() { Ok(configuration) } else { Err(errors) }
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        // SAFETY: a valid handle that no client took over (then this value was forgotten).
        unsafe { sys::rd_kafka_conf_destroy(self.0.as_ptr()) };
    }
}

impl Log {
    /// Whether a line of this kind may appear now, and how many were left out since the last.
    fn admit(&self, kind: &str) -> Option<u64> {
        let now = Instant::now();
        let mut said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match said.get_mut(kind) {
            Some((last, left_out)) if now.duration_since(*last) < REPEAT_LOG_EVERY => {
                *left_out += 1;
                None
            }
            Some((last, left_out)) => {
                *last = now;
                Some(std::mem::take(left_out))
            }
            None => {
                said.insert(kind.to_owned(), (now, 0));
                Some(0)
            }
        }
    }
}

impl Log {
    /// A token was had, or not.
    pub(super) fn token(&self, outcome: &Result<(), String>) {
        self.troubles.token(outcome.as_ref().err().map(String::as_str));
        match outcome {
            Ok(()) => tracing::debug!(client = self.client, "a new token for the login"),
            Err(reason) => tracing::warn!(
                client = self.client,
                "there is no new token for the login: {reason}; it is asked for again in 10 s, and what is logged in goes on until its token ends"
            ),
        }
    }
}

unsafe extern "C" fn on_log(
    handle: *const sys::rd_kafka_t,
    level: c_int,
    facility: *const c_char,
    text: *const c_char,
) {
    // SAFETY: librdkafka calls this with a live client and strings that end. The opaque pointer is null only
    // while `rd_kafka_new` runs in old versions; it is checked.
    let (log, facility, text) = unsafe {
        let log = if handle.is_null() { ptr::null() } else { sys::rd_kafka_opaque(handle).cast::<Log>() };
        (log.as_ref(), CStr::from_ptr(facility).to_string_lossy(), CStr::from_ptr(text).to_string_lossy())
    };
    if let Some(log) = log {
        if facility == "FAIL" || facility == "REQTMOUT" {
            log.unanswered.fetch_add(1, Ordering::SeqCst);
        }
        if facility == "FAIL" {
            log.troubles.connection_failed(&text);
        }
    }
    let (client, left_out) = match log {
        Some(log) if level <= 4 => match log.admit(&facility) {
            Some(left_out) => (log.client.as_str(), left_out),
            None => return,
        },
        Some(log) => (log.client.as_str(), 0),
        None => ("", 0),
    };
    match level {
        ..=4 => tracing::warn!(client, facility = %facility, left_out, "kafka client: {text}"),
        5 | 6 => tracing::debug!(client, facility = %facility, "kafka client: {text}"),
        _ => tracing::trace!(client, facility = %facility, "kafka client: {text}"),
    }
}

/// Decides on a certificate as OpenSSL did, and remembers why: the line that follows only says that it failed.
unsafe extern "C" fn on_certificate(
    _: *mut sys::rd_kafka_t,
    broker: *const c_char,
    _: i32,
    error: *mut c_int,
    _: c_int,
    _: *const c_char,
    _: usize,
    text: *mut c_char,
    text_bytes: usize,
    opaque: *mut c_void,
) -> c_int {
    const ACCEPTED: c_int = 1;
    const REFUSED: c_int = 0;
    // SAFETY: librdkafka calls this with the opaque pointer that `Client::new` set, which lives as long as the client,
    // the broker's `host:port` as a string that ends, a valid number, and a buffer with its length.
    unsafe {
        if *error == 0 {
            return ACCEPTED;
        }
        if let Some(log) = opaque.cast::<Log>().as_ref() {
            let what = log.troubles.certificate_refused(&CStr::from_ptr(broker).to_string_lossy(), *error);
            let length = what.len().min(text_bytes.saturating_sub(1));
            if text_bytes > 0 {
                ptr::copy_nonoverlapping(what.as_ptr().cast(), text, length);
                text.add(length).write(0);
            }
        }
        REFUSED
    }
}

unsafe extern "C" fn on_error(
    _: *mut sys::rd_kafka_t,
    code: c_int,
    reason: *const c_char,
    opaque: *mut c_void,
) {
    // SAFETY: called with the opaque pointer that `Client::new` set, which lives as long as the client, and a
    // string that ends.
    let (log, reason) = unsafe { (opaque.cast::<Log>().as_ref(), CStr::from_ptr(reason).to_string_lossy()) };
    let Some(log) = log else { return };
    let code = Code(code);
    if reason.starts_with("Failed to acquire SASL OAUTHBEARER token") {
        // Said where it was found out.
        return;
    }
    if let Some(left_out) = log.admit(&format!("{code:?}")) {
        tracing::warn!(client = log.client, error = ?code, left_out, "kafka client: {reason}");
    }
}

/// The text of an error object, which is destroyed.
///
/// # Safety
/// `error` is null or a valid error object that nobody else destroys.
pub(super) unsafe fn error_text(error: *mut sys::rd_kafka_error_t) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise; the text is copied before the object goes.
    unsafe {
        let text = CStr::from_ptr(sys::rd_kafka_error_string(error)).to_string_lossy().into_owned();
        sys::rd_kafka_error_destroy(error);
        Err(text)
    }
}

/// Whole milliseconds for the library, at least 1: 0 would mean "do not wait".
pub(super) fn millis(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX).max(1)
}

pub(super) fn text_of(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The array of `length` elements at `first`.
///
/// # Safety
/// `first` points at `length` valid elements that outlive `'a`, or `length` is not positive.
unsafe fn array<'a, T>(first: *const T, length: c_int) -> &'a [T] {
    match usize::try_from(length) {
        // SAFETY: the caller's promise.
        Ok(length) if length > 0 => unsafe { std::slice::from_raw_parts(first, length) },
        _ => &[],
    }
}
