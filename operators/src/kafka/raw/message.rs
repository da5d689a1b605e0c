//! Records: those that were fetched, and the topic to which others are produced.

use super::{Client, Code};
use rdkafka_sys::bindings as sys;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A fetched record, or an event in its place (an error, the end of the partition). It keeps the whole fetch
/// response in memory until it is dropped.
///
/// It must be dropped before its client: a `Vec<Message>` stands in a struct before the client's `Arc`.
#[repr(transparent)]
pub(crate) struct Message(NonNull<sys::rd_kafka_message_t>);

impl Message {
    /// A message that belongs to somebody else: it must not be dropped here.
    pub(super) fn borrowed(message: NonNull<sys::rd_kafka_message_t>) -> Message {
        Message(message)
    }

    /// The tag that was given when the record was produced.
    pub(super) fn tag(&self) -> usize {
        self.inner()._private as usize
    }

    fn inner(&self) -> &sys::rd_kafka_message_t {
        // SAFETY: the pointer came from a batch consume and is destroyed only in `Drop`. No field of an enum
        // type is read through this reference except by `error`, which reads it as a number.
        unsafe { self.0.as_ref() }
    }

    /// What this is when it is no record.
    pub(crate) fn error(&self) -> Option<Code> {
        // SAFETY: a valid message; the field has the size of an int.
        let code = Code(unsafe { (&raw const (*self.0.as_ptr()).err).cast::<i32>().read() });
        (!code.is_ok()).then_some(code)
    }

    /// What the broker said about a produced record that it did not take.
    pub(crate) fn produce_error_text(&self) -> Option<String> {
        // SAFETY: a valid message; the text is null or lives as long as the message.
        unsafe {
            let text = sys::rd_kafka_message_produce_errstr(self.0.as_ptr());
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }

    /// What the library says about a fetched error. (Of a produced record it would be the record's own value.)
    pub(crate) fn error_text(&self) -> String {
        // SAFETY: a valid message; the text is null or lives as long as the message.
        unsafe {
            let text = sys::rd_kafka_message_errstr(self.0.as_ptr());
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        }
    }

    pub(crate) fn offset(&self) -> i64 {
        self.inner().offset
    }

    /// `None` when the record has no key, which is not the same as an empty one.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        let message = self.inner();
        // SAFETY: a key that is not null has `key_len` bytes that live as long as the message.
        unsafe { bytes(message.key, message.key_len) }
    }

    /// `None` for a tombstone.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        let message = self.inner();
        // SAFETY: a payload that is not null has `len` bytes that live as long as the message.
        unsafe { bytes(message.payload, message.len) }
    }

    /// Milliseconds; `None` when the topic keeps none.
    pub(crate) fn timestamp(&self) -> Option<i64> {
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: a valid message and a place for the type, which is one of three in every version of the
        // message format.
        let timestamp = unsafe { sys::rd_kafka_message_timestamp(self.0.as_ptr(), &mut kind) };
        (kind != sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE && timestamp != -1)
            .then_some(timestamp)
    }

    /// Calls `each` with the name and value of every header, in their order.
    pub(crate) fn headers(&self, mut each: impl FnMut(&[u8], Option<&[u8]>)) {
        let mut headers = ptr::null_mut();
        // SAFETY: a valid message; the headers belong to it and live as long. Indexes are asked for until the
        // library says that there are no more.
        unsafe {
            let code = Code::from(sys::rd_kafka_message_headers(self.0.as_ptr(), &mut headers));
            if !code.is_ok() {
                return;
            }
            for index in 0.. {
                let (mut name, mut value, mut length) = (ptr::null(), ptr::null(), 0);
                let code = Code::from(sys::rd_kafka_header_get_all(
                    headers,
                    index,
                    &mut name,
                    &mut value,
                    &mut length,
                ));
                if !code.is_ok() {
                    return;
                }
                each(CStr::from_ptr(name).to_bytes(), bytes(value, length));
            }
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: the only owner; each message of a batch is destroyed once.
        unsafe { sys::rd_kafka_message_destroy(self.0.as_ptr()) };
    }
}

/// # Safety
/// `first` is null, or points at `length` bytes that outlive `'a`.
unsafe fn bytes<'a>(first: *const c_void, length: usize) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    (!first.is_null()).then(|| unsafe { std::slice::from_raw_parts(first.cast(), length) })
}

/// The library's number for "the partitioner chooses".
const UNASSIGNED: i32 = -1;

/// A topic to which a producer writes. The look-up by name is done once.
pub(crate) struct Topic {
    handle: NonNull<sys::rd_kafka_topic_t>,
    client: Option<Arc<Client>>,
}

// SAFETY: librdkafka's topic handles lock and count their references; any thread may use and destroy one.
unsafe impl Send for Topic {}

/// A record on its way out. Everything is copied by the library.
pub(crate) struct Outgoing<'a> {
    /// `None` leaves it to the client's partitioner.
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    /// 0 means now.
    pub(crate) timestamp: i64,
    /// Comes back with the delivery report.
    pub(crate) tag: usize,
}

impl Topic {
    pub(crate) fn new(client: &Arc<Client>, name: &str) -> Result<Topic, Code> {
        let mut topic = Topic::new_borrowed(client, name)?;
        topic.client = Some(client.clone());
        Ok(topic)
    }

    /// Without keeping the client alive: the caller drops it while it holds the client.
    pub(super) fn new_borrowed(client: &Client, name: &str) -> Result<Topic, Code> {
        let name = CString::new(name).map_err(|_| Code::INVALID_ARG)?;
        // SAFETY: a valid client and a string that ends; null asks for the client's default configuration.
        let handle = unsafe { sys::rd_kafka_topic_new(client.pointer(), name.as_ptr(), ptr::null_mut()) };
        // SAFETY: asks for the error of the call above, on the same thread.
        let handle = NonNull::new(handle).ok_or_else(|| Code::from(unsafe { sys::rd_kafka_last_error() }))?;
        Ok(Topic { handle, client: None })
    }

    pub(super) fn pointer(&self) -> *mut sys::rd_kafka_topic_t {
        self.handle.as_ptr()
    }

    /// Queues a record with these headers.
    pub(crate) fn produce<'h>(
        &self,
        record: &Outgoing<'_>,
        headers: impl ExactSizeIterator<Item = (&'h str, Option<&'h [u8]>)>,
    ) -> Result<(), Code> {
        let client = self.client.as_ref().expect("only a topic that keeps its client produces").pointer();
        let (key, key_length) = parts(record.key);
        let (value, value_length) = parts(record.value);
        let headers = if headers.len() == 0 { None } else { Some(owned_headers(headers)?) };
        let partition = record.partition.unwrap_or(UNASSIGNED);
        use sys::rd_kafka_vtype_t as v;
        // SAFETY: the list of (type, value …) is closed by END and each value has the C type that its type
        // asks for: RKT a topic, PARTITION an int32, MSGFLAGS an int, KEY and VALUE a pointer and a size_t, TIMESTAMP an int64,
        // OPAQUE a pointer (a number here, which the library never follows), HEADERS a pointer. With F_COPY
        // key and value are copied before the call returns. The headers are taken over only on success.
        let code = unsafe {
            match headers {
                None => sys::rd_kafka_producev(
                    client,
                    v::RD_KAFKA_VTYPE_RKT as c_int,
                    self.pointer(),
                    v::RD_KAFKA_VTYPE_PARTITION as c_int,
                    partition,
                    v::RD_KAFKA_VTYPE_MSGFLAGS as c_int,
                    sys::RD_KAFKA_MSG_F_COPY as c_int,
                    v::RD_KAFKA_VTYPE_KEY as c_int,
                    key,
                    key_length,
                    v::RD_KAFKA_VTYPE_VALUE as c_int,
                    value,
                    value_length,
                    v::RD_KAFKA_VTYPE_TIMESTAMP as c_int,
                    record.timestamp,
                    v::RD_KAFKA_VTYPE_OPAQUE as c_int,
                    record.tag as *mut c_void,
                    v::RD_KAFKA_VTYPE_END as c_int,
                ),
                Some(headers) => {
                    let code = sys::rd_kafka_producev(
                        client,
                        v::RD_KAFKA_VTYPE_RKT as c_int,
                        self.pointer(),
                        v::RD_KAFKA_VTYPE_PARTITION as c_int,
                        partition,
                        v::RD_KAFKA_VTYPE_MSGFLAGS as c_int,
                        sys::RD_KAFKA_MSG_F_COPY as c_int,
                        v::RD_KAFKA_VTYPE_KEY as c_int,
                        key,
                        key_length,
                        v::RD_KAFKA_VTYPE_VALUE as c_int,
                        value,
                        value_length,
                        v::RD_KAFKA_VTYPE_TIMESTAMP as c_int,
                        record.timestamp,
                        v::RD_KAFKA_VTYPE_OPAQUE as c_int,
                        record.tag as *mut c_void,
                        v::RD_KAFKA_VTYPE_HEADERS as c_int,
                        headers.0,
                        v::RD_KAFKA_VTYPE_END as c_int,
                    );
                    if Code::from(code).is_ok() {
                        std::mem::forget(headers);
                    }
                    code
                }
            }
        };
        Code::from(code).ok()
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: the only owner of a valid handle, dropped before its client.
        unsafe { sys::rd_kafka_topic_destroy(self.pointer()) };
    }
}

/// Headers that no record owns yet.
struct OwnedHeaders(*mut sys::rd_kafka_headers_t);

impl Drop for OwnedHeaders {
    fn drop(&mut self) {
        // SAFETY: the only owner of valid headers (they are forgotten when a record took them).
        unsafe { sys::rd_kafka_headers_destroy(self.0) };
    }
}

fn owned_headers<'h>(
    headers: impl ExactSizeIterator<Item = (&'h str, Option<&'h [u8]>)>,
) -> Result<OwnedHeaders, Code> {
    // SAFETY: no preconditions; the library aborts when it has no memory.
    let list = OwnedHeaders(unsafe { sys::rd_kafka_headers_new(headers.len()) });
    for (name, value) in headers {
        let (value, length) = parts(value);
        // SAFETY: valid headers; name and value are copied, their lengths are given.
        let code = unsafe {
            sys::rd_kafka_header_add(
                list.0,
                name.as_ptr().cast(),
                name.len() as isize,
                value,
                length as isize,
            )
        };
        Code::from(code).ok()?;
    }
    Ok(list)
}

/// Pointer and length; null means absent, and an empty slice is not null.
fn parts(bytes: Option<&[u8]>) -> (*const c_void, usize) {
    bytes.map_or((ptr::null(), 0), |bytes| (bytes.as_ptr().cast(), bytes.len()))
}
