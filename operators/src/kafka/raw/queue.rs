//! Queues: batches of records, answers to requests, delivery reports, and the signal that something came.

use super::client::{error_text, millis, text_of};
use super::list::{PartitionOffset, element_of, elements_of};
use super::members::{GroupMember, members_of};
use super::message::Message;
use super::{Client, Code, PartitionList};
use rdkafka_sys::bindings as sys;
use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;
use tidegate_recovery::{TopicId, TopicPartition};

/// What is to be done when an empty queue is no longer empty. It is called on a thread of the client while
/// the queue is locked: it must be short and must not call the client.
pub(crate) trait Signal: Send + Sync {
    fn raise(&self);
}

/// A queue of a client.
pub(crate) struct Queue {
    pub(super) handle: NonNull<sys::rd_kafka_queue_t>,
    /// Keeps what the callback points at alive. Boxed, because a pointer to a trait object has two words.
    signal: Option<Box<Arc<dyn Signal>>>,
    pub(super) client: Arc<Client>,
}

// SAFETY: librdkafka's queues lock; this owner may move between threads. It is not `Sync`: two threads that
// consume batches of one client at a time are not supported by the library.
unsafe impl Send for Queue {}

/// Which records a reader sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isolation {
    Committed,
    Uncommitted,
}

/// Which end of a partition is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffsetSpec {
    Earliest,
    Latest,
    /// The first record that is not older; in milliseconds since the Unix epoch, never negative.
    Timestamp(i64),
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// To a commit; `tag` is the one given.
    Commit { tag: usize, error: Code, offsets: Vec<PartitionOffset> },
    /// To a question for offsets.
    Offsets { tag: usize, result: Result<Vec<PartitionOffset>, String> },
    /// To a question for topics.
    Topics { tag: usize, result: Result<Vec<TopicDescription>, String> },
    /// To a question for the members of a group.
    Members { tag: usize, result: Result<Vec<GroupMember>, Code> },
}

/// A topic as the cluster describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicDescription {
    pub(crate) name: String,
    pub(crate) error: Code,
    /// `None` where the broker says none.
    pub(crate) id: Option<TopicId>,
    pub(crate) partitions: usize,
}

impl Queue {
    /// A new queue for answers.
    pub(crate) fn new(client: &Arc<Client>) -> Queue {
        // SAFETY: a valid client.
        Queue::own(client, unsafe { sys::rd_kafka_queue_new(client.pointer()) })
    }

    /// The queue of what concerns no single partition: errors, and records of partitions that were not split.
    pub(crate) fn of_consumer(client: &Arc<Client>) -> Queue {
        // SAFETY: a valid consumer.
        Queue::own(client, unsafe { sys::rd_kafka_queue_get_consumer(client.pointer()) })
    }

    /// The queue of delivery reports and errors.
    pub(crate) fn of_producer(client: &Arc<Client>) -> Queue {
        // SAFETY: a valid client.
        Queue::own(client, unsafe { sys::rd_kafka_queue_get_main(client.pointer()) })
    }

    /// The partition's own queue, split from the consumer's. To be called before `assign`: the library does
    /// not forward a queue that the application has forwarded itself, and null means nowhere.
    pub(crate) fn of_partition(client: &Arc<Client>, partition: &TopicPartition) -> Result<Queue, Code> {
        let topic = CString::new(&*partition.topic).map_err(|_| Code::INVALID_ARG)?;
        // SAFETY: a valid consumer and a string that ends.
        let handle = unsafe {
            sys::rd_kafka_queue_get_partition(client.pointer(), topic.as_ptr(), partition.partition)
        };
        if handle.is_null() {
            return Err(Code::UNKNOWN_PARTITION);
        }
        let queue = Queue::own(client, handle);
        // SAFETY: a valid queue; a null destination ends the forwarding.
        unsafe { sys::rd_kafka_queue_forward(queue.handle.as_ptr(), ptr::null_mut()) };
        Ok(queue)
    }

    fn own(client: &Arc<Client>, handle: *mut sys::rd_kafka_queue_t) -> Queue {
        let handle = NonNull::new(handle).expect("every client has its main queues");
        Queue { handle, signal: None, client: client.clone() }
    }

    /// Raises the signal whenever the queue stops being empty. What lay in it before raises nothing: look
    /// once after this call.
    pub(crate) fn signal_with(&mut self, signal: Arc<dyn Signal>) {
        let signal = Box::new(signal);
        let opaque: *const Arc<dyn Signal> = &*signal;
        // SAFETY: a valid queue. The pointer stays valid until the callback is taken away, in `Drop` or by
        // the next call here: both happen under the queue's lock, under which the callback runs too, and the
        // box is freed afterwards.
        unsafe {
            sys::rd_kafka_queue_cb_event_enable(
                self.handle.as_ptr(),
                Some(on_not_empty),
                opaque.cast_mut().cast(),
            );
        }
        self.signal = Some(signal);
    }

    /// Appends at most `limit` records (and events in their place) that are there now; returns how many.
    pub(crate) fn consume(&mut self, limit: usize, messages: &mut Vec<Message>) -> usize {
        self.consume_within(Duration::ZERO, limit, messages)
    }

    /// As [`Queue::consume`], but waits at most `timeout` for all of them.
    pub(crate) fn consume_within(
        &mut self,
        timeout: Duration,
        limit: usize,
        messages: &mut Vec<Message>,
    ) -> usize {
        messages.reserve(limit);
        let start = messages.len();
        let timeout = if timeout.is_zero() { 0 } else { millis(timeout) };
        // SAFETY: a valid queue; `Message` is a transparent pointer that is never null, and the spare
        // capacity holds `limit` of them, of which the call fills the first `count`. It is the only one of
        // this client that runs: the queue is borrowed mutably and all queues of a client belong to one reader.
        unsafe {
            let count = sys::rd_kafka_consume_batch_queue(
                self.handle.as_ptr(),
                timeout,
                messages.as_mut_ptr().add(start).cast(),
                limit,
            );
            let count = usize::try_from(count).unwrap_or(0);
            messages.set_len(start + count);
            count
        }
    }

    /// Commits offsets to the group without waiting; the answer comes to this queue.
    pub(crate) fn commit(&self, list: &PartitionList, tag: usize) -> Result<(), Code> {
        // SAFETY: valid handles; the list is copied. Without a callback the answer is an event on the queue.
        Code::from(unsafe {
            sys::rd_kafka_commit_queue(
                self.client.pointer(),
                list.pointer(),
                self.handle.as_ptr(),
                None,
                tag as *mut c_void,
            )
        })
        .ok()
    }

    /// Asks for an end of each partition without waiting; the answer comes to this queue.
    ///
    /// Only for partitions whose leaders the client knows. While it misses one, the library (2.12) works on the same question
    /// on this thread and on its own, and each may take away what the other uses: the process then dies of it
    /// (`rd_kafka_topic_partition_list_query_leaders_async`).
    pub(crate) fn ask_offsets<'a>(
        &self,
        partitions: impl IntoIterator<Item = &'a TopicPartition>,
        spec: OffsetSpec,
        isolation: Isolation,
        timeout: Duration,
        tag: usize,
    ) -> Result<(), String> {
        let spec = match spec {
            OffsetSpec::Earliest => sys::rd_kafka_OffsetSpec_t::RD_KAFKA_OFFSET_SPEC_EARLIEST as i64,
            OffsetSpec::Latest => sys::rd_kafka_OffsetSpec_t::RD_KAFKA_OFFSET_SPEC_LATEST as i64,
            OffsetSpec::Timestamp(milliseconds) => milliseconds,
        };
        let list = PartitionList::new(partitions.into_iter().map(|partition| (partition, spec)));
        let isolation = match isolation {
            Isolation::Committed => sys::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_COMMITTED,
            Isolation::Uncommitted => {
                sys::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_UNCOMMITTED
            }
        };
        let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTOFFSETS;
        let options = Options::new(&self.client, operation, timeout, tag)?;
        // SAFETY: valid handles; the request copies the options and the list.
        unsafe {
            error_text(sys::rd_kafka_AdminOptions_set_isolation_level(options.pointer(), isolation))?;
            sys::rd_kafka_ListOffsets(
                self.client.pointer(),
                list.pointer(),
                options.pointer(),
                self.handle.as_ptr(),
            );
        }
        Ok(())
    }

    /// Asks what the cluster knows of the topics, without waiting; the answer comes to this queue.
    pub(crate) fn ask_topics<'a>(
        &self,
        topics: impl IntoIterator<Item = &'a str>,
        timeout: Duration,
        tag: usize,
    ) -> Result<(), String> {
        let names: Result<Vec<CString>, _> = topics.into_iter().map(CString::new).collect();
        let names = names.map_err(|_| "a topic name has a zero byte".to_owned())?;
        let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let options = Options::new(&self.client, operation, timeout, tag)?;
        // SAFETY: valid handles, and an array of strings that end with its length. The collection is destroyed after
        // the request, which copies it and the options.
        unsafe {
            let topics = sys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
            let queue = self.handle.as_ptr();
            sys::rd_kafka_DescribeTopics(self.client.pointer(), topics, options.pointer(), queue);
            sys::rd_kafka_TopicCollection_destroy(topics);
        }
        Ok(())
    }

    /// The next answer; waits at most `timeout`, not at all when it is zero.
    pub(crate) fn reply(&mut self, timeout: Duration) -> Option<Reply> {
        loop {
            let event = self.event(timeout)?;
            // SAFETY: a valid event; every part that is read belongs to it and is copied before it goes.
            // Commits and these questions are all that is ever sent with an answer to such a queue.
            unsafe {
                let error = Code::from(sys::rd_kafka_event_error(event.0.as_ptr()));
                match sys::rd_kafka_event_type(event.0.as_ptr()) {
                    sys::RD_KAFKA_EVENT_OFFSET_COMMIT => {
                        let list = sys::rd_kafka_event_topic_partition_list(event.0.as_ptr());
                        let offsets = if list.is_null() { Vec::new() } else { elements_of(list) };
                        let tag = sys::rd_kafka_event_opaque(event.0.as_ptr()) as usize;
                        return Some(Reply::Commit { tag, error, offsets });
                    }
                    sys::RD_KAFKA_EVENT_LISTOFFSETS_RESULT => {
                        let tag = sys::rd_kafka_event_opaque(event.0.as_ptr()) as usize;
                        if !error.is_ok() {
                            let text = sys::rd_kafka_event_error_string(event.0.as_ptr());
                            let text = CStr::from_ptr(text).to_string_lossy();
                            return Some(Reply::Offsets { tag, result: Err(format!("{error:?}: {text}")) });
                        }
                        let result = sys::rd_kafka_event_ListOffsets_result(event.0.as_ptr());
                        let mut count = 0;
                        let infos = sys::rd_kafka_ListOffsets_result_infos(result, &mut count);
                        let offsets = (0..count)
                            .map(|index| {
                                element_of(sys::rd_kafka_ListOffsetsResultInfo_topic_partition(
                                    *infos.add(index),
                                ))
                            })
                            .collect();
                        return Some(Reply::Offsets { tag, result: Ok(offsets) });
                    }
                    sys::RD_KAFKA_EVENT_DESCRIBETOPICS_RESULT => {
                        let tag = sys::rd_kafka_event_opaque(event.0.as_ptr()) as usize;
                        if !error.is_ok() {
                            let text = sys::rd_kafka_event_error_string(event.0.as_ptr());
                            let text = CStr::from_ptr(text).to_string_lossy();
                            return Some(Reply::Topics { tag, result: Err(format!("{error:?}: {text}")) });
                        }
                        let result = sys::rd_kafka_event_DescribeTopics_result(event.0.as_ptr());
                        let mut count = 0;
                        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &mut count);
                        let topics = (0..count).map(|index| describe(*topics.add(index))).collect();
                        return Some(Reply::Topics { tag, result: Ok(topics) });
                    }
                    sys::RD_KAFKA_EVENT_DESCRIBECONSUMERGROUPS_RESULT => {
                        let tag = sys::rd_kafka_event_opaque(event.0.as_ptr()) as usize;
                        let result = error.ok().and_then(|()| {
                            members_of(sys::rd_kafka_event_DescribeConsumerGroups_result(event.0.as_ptr()))
                        });
                        return Some(Reply::Members { tag, result });
                    }
                    other => {
                        tracing::debug!(event = other, "an answer of an unknown kind was left aside");
                    }
                }
            }
        }
    }

    /// Calls `each` for the delivery reports that are there, without waiting, with the record (its
    /// [`Message::error`] says what became of it) and its tag; returns whether there were any. Errors that
    /// concern no single record have been logged by the client.
    pub(crate) fn delivery_reports(&mut self, each: impl FnMut(&Message, usize)) -> bool {
        self.delivery_reports_within(Duration::ZERO, each)
    }

    /// As [`Queue::delivery_reports`], but waits at most `timeout` for the first.
    pub(crate) fn delivery_reports_within(
        &mut self,
        timeout: Duration,
        mut each: impl FnMut(&Message, usize),
    ) -> bool {
        let mut any = false;
        let mut event = self.event(timeout);
        while let Some(one) = event {
            // SAFETY: a valid event. The messages belong to it: each is only borrowed, and never dropped
            // here, while the event lives.
            unsafe {
                if sys::rd_kafka_event_type(one.0.as_ptr()) == sys::RD_KAFKA_EVENT_DR {
                    loop {
                        let message = sys::rd_kafka_event_message_next(one.0.as_ptr());
                        let Some(message) = NonNull::new(message.cast_mut()) else { break };
                        any = true;
                        let message = ManuallyDrop::new(Message::borrowed(message));
                        each(&message, message.tag());
                    }
                }
            }
            event = self.event(Duration::ZERO);
        }
        any
    }

    fn event(&mut self, timeout: Duration) -> Option<Event> {
        let timeout = if timeout.is_zero() { 0 } else { millis(timeout) };
        // SAFETY: a valid queue.
        NonNull::new(unsafe { sys::rd_kafka_queue_poll(self.handle.as_ptr(), timeout) }).map(Event)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: a valid queue, of which this is the only owner; the callback is taken away first, see
        // `signal_with`. The client is dropped after this (it is a field).
        unsafe {
            if self.signal.is_some() {
                sys::rd_kafka_queue_cb_event_enable(self.handle.as_ptr(), None, ptr::null_mut());
            }
            sys::rd_kafka_queue_destroy(self.handle.as_ptr());
        }
    }
}

/// # Safety
/// `topic` is valid and nobody changes it meanwhile.
unsafe fn describe(topic: *const sys::rd_kafka_TopicDescription_t) -> TopicDescription {
    // SAFETY: the caller's promise; error and id may be null, the name is a string that ends.
    unsafe {
        let error = sys::rd_kafka_TopicDescription_error(topic);
        let id = sys::rd_kafka_TopicDescription_topic_id(topic);
        let mut partitions = 0;
        sys::rd_kafka_TopicDescription_partitions(topic, &mut partitions);
        TopicDescription {
            name: CStr::from_ptr(sys::rd_kafka_TopicDescription_name(topic)).to_string_lossy().into_owned(),
            error: if error.is_null() { Code::OK } else { Code::from(sys::rd_kafka_error_code(error)) },
            id: (!id.is_null())
                .then(|| {
                    let half = |bits: i64| u128::from(bits as u64);
                    half(sys::rd_kafka_Uuid_most_significant_bits(id)) << 64
                        | half(sys::rd_kafka_Uuid_least_significant_bits(id))
                })
                .filter(|id| *id != 0)
                .map(TopicId),
            partitions,
        }
    }
}

unsafe extern "C" fn on_not_empty(_: *mut sys::rd_kafka_t, opaque: *mut c_void) {
    // SAFETY: the pointer is the one that `signal_with` gave, valid for as long as the callback is in place.
    unsafe { (*opaque.cast::<Arc<dyn Signal>>()).raise() };
}

/// What a question may take, and the tag that its answer carries.
pub(super) struct Options(NonNull<sys::rd_kafka_AdminOptions_t>);

impl Options {
    pub(super) fn new(
        client: &Client,
        operation: sys::rd_kafka_admin_op_t,
        timeout: Duration,
        tag: usize,
    ) -> Result<Options, String> {
        // SAFETY: a valid client; the library knows every operation that its bindings name.
        let handle = unsafe { sys::rd_kafka_AdminOptions_new(client.pointer(), operation) };
        let options = Options(NonNull::new(handle).expect("options are never null"));
        let mut text = [0 as c_char; 512];
        // SAFETY: valid options, and a buffer with its length.
        let code = Code::from(unsafe {
            sys::rd_kafka_AdminOptions_set_opaque(options.pointer(), tag as *mut c_void);
            sys::rd_kafka_AdminOptions_set_request_timeout(
                options.pointer(),
                millis(timeout),
                text.as_mut_ptr(),
                text.len(),
            )
        });
        code.ok().map_err(|_| text_of(&text))?;
        Ok(options)
    }

    pub(super) fn pointer(&self) -> *mut sys::rd_kafka_AdminOptions_t {
        self.0.as_ptr()
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: the only owner of valid options.
        unsafe { sys::rd_kafka_AdminOptions_destroy(self.pointer()) };
    }
}

struct Event(NonNull<sys::rd_kafka_event_t>);

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the only owner of a valid event.
        unsafe { sys::rd_kafka_event_destroy(self.0.as_ptr()) };
    }
}
