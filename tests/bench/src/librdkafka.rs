//! The few calls of librdkafka that the raw loops are made of, with as little around them as safety allows.
//!
//! [`Consumer`] reads all partitions of one topic in batches, from their begin. [`Producer`] writes to one topic, one by one with
//! a timestamp ([`Producer::send`]) or a whole consumed batch ([`Producer::send_batch`], which librdkafka stamps with
//! "now"). Every failed delivery is counted, and [`Producer::finish`] reports it.
//!
//! This is the only module of the benchmark with `unsafe`. Its rules: a handle is destroyed exactly once, by `Drop`, after
//! everything that was made from it; a message is borrowed from the batch that owns it and destroyed with the batch;
//! nothing here is `Send`, so that no two calls on one client overlap (they may not, for the batch calls).

use std::ffi::{CStr, CString, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rdkafka_sys as sys;
use rdkafka_sys::bindings::rd_kafka_vtype_t as vtype;
use sys::rd_kafka_resp_err_t::{RD_KAFKA_RESP_ERR__QUEUE_FULL, RD_KAFKA_RESP_ERR_NO_ERROR};

use crate::error::{Error, Result};

/// Most messages that one poll hands out.
const BATCH: usize = 1_000;
/// How long a transactional call may take.
const TRANSACTION_MS: c_int = 30_000;
/// The partition that means "let the partitioner choose".
const UNASSIGNED: i32 = -1;

/// Settings of a client: names and values of librdkafka's configuration.
pub(crate) type Settings<'a> = &'a [(&'a str, &'a str)];

/// A client handle.
struct Client(*mut sys::rd_kafka_t);

impl Client {
    fn new(kind: sys::rd_kafka_type_t, settings: Settings<'_>, reports: Option<&Reports>) -> Result<Client> {
        // SAFETY: takes nothing and returns a new configuration that we own.
        let config = unsafe { sys::rd_kafka_conf_new() };
        let mut reason = [0; 512];
        for (name, value) in settings {
            let (name, value) = (c_string(name)?, c_string(value)?);
            // SAFETY: all pointers are valid for the call, which copies the strings and writes at most `len` bytes of text.
            let result = unsafe {
                sys::rd_kafka_conf_set(
                    config,
                    name.as_ptr(),
                    value.as_ptr(),
                    reason.as_mut_ptr(),
                    reason.len(),
                )
            };
            if result != sys::rd_kafka_conf_res_t::RD_KAFKA_CONF_OK {
                // SAFETY: the configuration is ours and was given to nobody.
                unsafe { sys::rd_kafka_conf_destroy(config) };
                return Err(Error::Kafka { what: "configure a client", reason: text(&reason) });
            }
        }
        if let Some(reports) = reports {
            let opaque = ptr::from_ref(reports).cast_mut().cast::<c_void>();
            // SAFETY: the configuration is ours; `reports` outlives the client (see `Producer`), and the callback only
            // reads it, from the thread that polls.
            unsafe {
                sys::rd_kafka_conf_set_opaque(config, opaque);
                sys::rd_kafka_conf_set_dr_msg_cb(config, Some(on_delivery));
            }
        }
        // SAFETY: on success the client owns the configuration from here on, on failure it is still ours.
        let client = unsafe { sys::rd_kafka_new(kind, config, reason.as_mut_ptr(), reason.len()) };
        if client.is_null() {
            // SAFETY: the creation failed, so the configuration is still ours.
            unsafe { sys::rd_kafka_conf_destroy(config) };
            return Err(Error::Kafka { what: "create a client", reason: text(&reason) });
        }
        Ok(Client(client))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: the handle came from `rd_kafka_new`, this is its only destruction, and what was made from it is declared
        // before it in the structs below, so it is gone already.
        unsafe { sys::rd_kafka_destroy(self.0) }
    }
}

/// The queue with everything that a consumer fetched.
struct Queue(*mut sys::rd_kafka_queue_t);

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the handle came from `rd_kafka_queue_get_consumer`, and this gives that reference back once.
        unsafe { sys::rd_kafka_queue_destroy(self.0) }
    }
}

/// Reads a topic from its begin.
pub(crate) struct Consumer {
    // Fields are dropped in this order.
    queue: Queue,
    client: Client,
    batch: Vec<*mut sys::rd_kafka_message_t>,
}

impl Consumer {
    /// A consumer of `partitions` partitions of `topic`; no group is joined.
    pub(crate) fn assign(settings: Settings<'_>, topic: &str, partitions: i32) -> Result<Consumer> {
        let client = Client::new(sys::rd_kafka_type_t::RD_KAFKA_CONSUMER, settings, None)?;
        let name = c_string(topic)?;
        // SAFETY: the client is a consumer; the list is made and destroyed here, `assign` copies it; each element that
        // `add` returns points into the list and is written before the next `add`, which may move it.
        let (assigned, queue) = unsafe {
            sys::rd_kafka_poll_set_consumer(client.0);
            let list = sys::rd_kafka_topic_partition_list_new(partitions);
            for partition in 0..partitions {
                let element = sys::rd_kafka_topic_partition_list_add(list, name.as_ptr(), partition);
                (*element).offset = 0;
            }
            let assigned = sys::rd_kafka_assign(client.0, list);
            sys::rd_kafka_topic_partition_list_destroy(list);
            (assigned, sys::rd_kafka_queue_get_consumer(client.0))
        };
        if queue.is_null() {
            return Err(Error::Kafka { what: "take the consumer's queue", reason: "it has none".into() });
        }
        let queue = Queue(queue);
        check("assign partitions", assigned)?;
        Ok(Consumer { queue, client, batch: vec![ptr::null_mut(); BATCH] })
    }

    /// The end of a partition, asked of the broker.
    pub(crate) fn end(&self, topic: &str, partition: i32) -> Result<i64> {
        const REQUEST_MS: c_int = 20_000;
        let name = c_string(topic)?;
        let (mut start, mut end) = (0, 0);
        // SAFETY: the client lives, and the three pointers are valid for the call.
        let asked = unsafe {
            sys::rd_kafka_query_watermark_offsets(
                self.client.0,
                name.as_ptr(),
                partition,
                &mut start,
                &mut end,
                REQUEST_MS,
            )
        };
        check("ask for the end of a partition", asked)?;
        Ok(end)
    }

    /// What has arrived, at most 1000 messages; waits up to `timeout_ms` for the first ones.
    pub(crate) fn poll(&mut self, timeout_ms: c_int) -> Result<Batch<'_>> {
        // SAFETY: the array has room for `BATCH` pointers; this thread is the only one that uses the queue. The first
        // `count` pointers are messages that we own from here on; `Batch` destroys them.
        let count = unsafe {
            sys::rd_kafka_consume_batch_queue(self.queue.0, timeout_ms, self.batch.as_mut_ptr(), BATCH)
        };
        let count = usize::try_from(count)
            .map_err(|_| Error::Kafka { what: "consume a batch", reason: "the call failed".into() })?;
        Ok(Batch { messages: &self.batch[..count], consumer: PhantomData })
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // SAFETY: the client lives (it is dropped after this); no batch does, since batches borrow the consumer.
        // The answer only says how leaving a group went, and there is none.
        let _no_group = unsafe { sys::rd_kafka_consumer_close(self.client.0) };
    }
}

/// Messages of one poll; destroyed together.
pub(crate) struct Batch<'a> {
    messages: &'a [*mut sys::rd_kafka_message_t],
    consumer: PhantomData<&'a Consumer>,
}

impl Batch<'_> {
    /// The records in their order; an error that the client reported ends the loop.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<Message<'_>>> {
        self.messages.iter().map(|&message| {
            // SAFETY: the pointer came from `poll` and is valid until the batch is dropped, which outlives the borrow.
            let message = unsafe { &*message };
            check("consume", message.err).map(|()| Message(message))
        })
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for &message in self.messages {
            // SAFETY: each pointer is one message that `poll` gave us, and this is its only destruction.
            unsafe { sys::rd_kafka_message_destroy(message) }
        }
    }
}

/// A consumed record.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a>(&'a sys::rd_kafka_message_t);

impl<'a> Message<'a> {
    /// The offset.
    pub(crate) fn offset(self) -> i64 {
        self.0.offset
    }

    /// The partition.
    pub(crate) fn partition(self) -> i32 {
        self.0.partition
    }

    /// The key.
    pub(crate) fn key(self) -> Option<&'a [u8]> {
        // SAFETY: librdkafka gives a null pointer or `key_len` bytes that live as long as the message.
        unsafe { bytes(self.0.key, self.0.key_len) }
    }

    /// The value.
    pub(crate) fn value(self) -> Option<&'a [u8]> {
        // SAFETY: as for the key.
        unsafe { bytes(self.0.payload, self.0.len) }
    }

    /// The timestamp in milliseconds; -1 when there is none.
    pub(crate) fn timestamp(self) -> i64 {
        // SAFETY: the message is valid, and a null pointer for the kind of timestamp is allowed.
        unsafe { sys::rd_kafka_message_timestamp(self.0, ptr::null_mut()) }
    }
}

/// What became of the messages that were sent.
#[derive(Default)]
struct Reports {
    failed: AtomicU64,
    delivered: AtomicU64,
}

/// Called by librdkafka on the thread that polls or flushes, once per message.
unsafe extern "C" fn on_delivery(
    _client: *mut sys::rd_kafka_t,
    message: *const sys::rd_kafka_message_t,
    opaque: *mut c_void,
) {
    // SAFETY: `opaque` is the `Reports` that `Client::new` was given, which outlives the client; `message` is valid
    // during the call.
    let (reports, message) = unsafe { (&*opaque.cast::<Reports>(), &*message) };
    let counter =
        if message.err == RD_KAFKA_RESP_ERR_NO_ERROR { &reports.delivered } else { &reports.failed };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The topic that a producer writes to.
struct Topic(*mut sys::rd_kafka_topic_t);

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: the handle came from `rd_kafka_topic_new`, and this gives that reference back once.
        unsafe { sys::rd_kafka_topic_destroy(self.0) }
    }
}

/// Writes to one topic.
pub(crate) struct Producer {
    // Fields are dropped in this order: the client may report until it is gone, so `reports` comes last.
    topic: Topic,
    client: Client,
    reports: Box<Reports>,
    outgoing: Vec<sys::rd_kafka_message_t>,
    sent: u64,
}

impl Producer {
    /// A producer for `topic`.
    pub(crate) fn new(settings: Settings<'_>, topic: &str) -> Result<Producer> {
        let reports = Box::<Reports>::default();
        let client = Client::new(sys::rd_kafka_type_t::RD_KAFKA_PRODUCER, settings, Some(&reports))?;
        let name = c_string(topic)?;
        // SAFETY: the client lives, the name is copied, and a null configuration means the client's defaults.
        let topic = unsafe { sys::rd_kafka_topic_new(client.0, name.as_ptr(), ptr::null_mut()) };
        if topic.is_null() {
            return Err(Error::Kafka { what: "open a topic for writing", reason: "it was refused".into() });
        }
        Ok(Producer { topic: Topic(topic), client, reports, outgoing: Vec::with_capacity(BATCH), sent: 0 })
    }

    /// Sends one record, waiting for room in the client's queue.
    pub(crate) fn send(
        &mut self,
        partition: Option<i32>,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        at_ms: i64,
    ) -> Result<()> {
        let partition = partition.unwrap_or(UNASSIGNED);
        let (key, key_bytes) = raw(key);
        let (value, value_bytes) = raw(value);
        loop {
            // SAFETY: the arguments follow the tags as `rdkafka.h` lists them, each with the type that its tag demands, and
            // end with END. MSG_F_COPY makes librdkafka copy the value; it always copies the key.
            let result = unsafe {
                sys::rd_kafka_producev(
                    self.client.0,
                    vtype::RD_KAFKA_VTYPE_RKT as c_int,
                    self.topic.0,
                    vtype::RD_KAFKA_VTYPE_PARTITION as c_int,
                    partition,
                    vtype::RD_KAFKA_VTYPE_VALUE as c_int,
                    value,
                    value_bytes,
                    vtype::RD_KAFKA_VTYPE_KEY as c_int,
                    key,
                    key_bytes,
                    vtype::RD_KAFKA_VTYPE_TIMESTAMP as c_int,
                    at_ms,
                    vtype::RD_KAFKA_VTYPE_MSGFLAGS as c_int,
                    sys::RD_KAFKA_MSG_F_COPY,
                    vtype::RD_KAFKA_VTYPE_END as c_int,
                )
            };
            match result {
                RD_KAFKA_RESP_ERR_NO_ERROR => break,
                RD_KAFKA_RESP_ERR__QUEUE_FULL => self.serve(100),
                error => return Err(Error::Kafka { what: "produce", reason: error_text(error) }),
            }
        }
        self.sent += 1;
        Ok(())
    }

    /// Sends the records of a consumed batch with one call, waiting for room in the client's queue.
    pub(crate) fn send_batch(&mut self, batch: &Batch<'_>) -> Result<u64> {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        outgoing.clear();
        for message in batch.iter() {
            let mut copy = *message?.0;
            copy._private = ptr::null_mut();
            outgoing.push(copy);
        }
        let records = outgoing.len() as u64;
        while !outgoing.is_empty() {
            let count = c_int::try_from(outgoing.len()).unwrap_or(c_int::MAX);
            // SAFETY: `outgoing` holds `count` messages whose keys and values are borrowed from `batch`, which outlives
            // the call; MSG_F_COPY makes librdkafka copy them before it returns.
            let taken = unsafe {
                sys::rd_kafka_produce_batch(
                    self.topic.0,
                    UNASSIGNED,
                    sys::RD_KAFKA_MSG_F_COPY,
                    outgoing.as_mut_ptr(),
                    count,
                )
            };
            if taken == count {
                break;
            }
            // The call wrote into each message whether it was taken.
            outgoing.retain(|message| message.err != RD_KAFKA_RESP_ERR_NO_ERROR);
            if let Some(refused) =
                outgoing.iter().find(|message| message.err != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            {
                return Err(Error::Kafka { what: "produce a batch", reason: error_text(refused.err) });
            }
            self.serve(100);
        }
        self.outgoing = outgoing;
        self.sent += records;
        Ok(records)
    }

    /// Initialises the transactions of a producer with a `transactional.id`.
    pub(crate) fn init_transactions(&self) -> Result<()> {
        // SAFETY: the client lives, and only this thread calls into it.
        succeeded("initialise transactions", unsafe {
            sys::rd_kafka_init_transactions(self.client.0, TRANSACTION_MS)
        })
    }

    /// Begins a transaction.
    pub(crate) fn begin(&self) -> Result<()> {
        // SAFETY: the client lives, and only this thread calls into it.
        succeeded("begin a transaction", unsafe { sys::rd_kafka_begin_transaction(self.client.0) })
    }

    /// Commits the transaction together with the group's offsets of `topic`, one for each partition.
    pub(crate) fn commit(&self, group: &str, topic: &str, next: &[i64]) -> Result<()> {
        let (group, topic) = (c_string(group)?, c_string(topic)?);
        let room = c_int::try_from(next.len()).unwrap_or(c_int::MAX);
        // SAFETY: list and metadata are made and destroyed here, the call copies both; each element that `add` returns
        // points into the list and is written before the next `add`, which may move it.
        let sent = unsafe {
            let list = sys::rd_kafka_topic_partition_list_new(room);
            for (partition, offset) in (0..).zip(next) {
                let element = sys::rd_kafka_topic_partition_list_add(list, topic.as_ptr(), partition);
                (*element).offset = *offset;
            }
            let metadata = sys::rd_kafka_consumer_group_metadata_new(group.as_ptr());
            let sent =
                sys::rd_kafka_send_offsets_to_transaction(self.client.0, list, metadata, TRANSACTION_MS);
            sys::rd_kafka_consumer_group_metadata_destroy(metadata);
            sys::rd_kafka_topic_partition_list_destroy(list);
            sent
        };
        succeeded("send offsets to a transaction", sent)?;
        // SAFETY: the client lives, and only this thread calls into it.
        succeeded("commit a transaction", unsafe {
            sys::rd_kafka_commit_transaction(self.client.0, TRANSACTION_MS)
        })
    }

    /// Hands out delivery reports, waiting up to `timeout_ms` for the first.
    pub(crate) fn serve(&self, timeout_ms: c_int) {
        // SAFETY: the client lives, and only this thread calls into it. The answer is the number of reports.
        let _reports = unsafe { sys::rd_kafka_poll(self.client.0, timeout_ms) };
    }

    /// Waits until everything is delivered and returns how many records were.
    pub(crate) fn finish(self) -> Result<u64> {
        const FLUSH_MS: c_int = 120_000;
        // SAFETY: the client lives, and only this thread calls into it.
        check("flush", unsafe { sys::rd_kafka_flush(self.client.0, FLUSH_MS) })?;
        let failed = self.reports.failed.load(Ordering::Relaxed);
        Error::expect("deliveries that failed", 0, failed)?;
        let delivered = self.reports.delivered.load(Ordering::Relaxed);
        Error::expect("records that were delivered", self.sent, delivered)?;
        Ok(delivered)
    }
}

/// # Safety
///
/// `start` is null, or `length` bytes there live for `'a` and are not written meanwhile.
unsafe fn bytes<'a>(start: *mut c_void, length: usize) -> Option<&'a [u8]> {
    if start.is_null() {
        None
    } else {
        // SAFETY: the caller says so.
        Some(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) })
    }
}

fn raw(bytes: Option<&[u8]>) -> (*const c_void, usize) {
    bytes.map_or((ptr::null(), 0), |bytes| (bytes.as_ptr().cast(), bytes.len()))
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|e| Error::Kafka { what: "pass a text", reason: e.to_string() })
}

fn check(what: &'static str, code: sys::rd_kafka_resp_err_t) -> Result<()> {
    match code {
        RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        error => Err(Error::Kafka { what, reason: error_text(error) }),
    }
}

/// An error object is ours to destroy; there is none when the call succeeded.
fn succeeded(what: &'static str, error: *mut sys::rd_kafka_error_t) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a valid error object, whose text is copied before its only destruction.
    let reason = unsafe {
        let reason = CStr::from_ptr(sys::rd_kafka_error_string(error)).to_string_lossy().into_owned();
        sys::rd_kafka_error_destroy(error);
        reason
    };
    Err(Error::Kafka { what, reason })
}

fn error_text(code: sys::rd_kafka_resp_err_t) -> String {
    // SAFETY: takes a code and returns a static text that ends with a zero byte.
    unsafe { CStr::from_ptr(sys::rd_kafka_err2str(code)) }.to_string_lossy().into_owned()
}

fn text(buffer: &[std::ffi::c_char]) -> String {
    buffer.iter().take_while(|&&c| c != 0).map(|&c| char::from(c.cast_unsigned())).collect()
}
