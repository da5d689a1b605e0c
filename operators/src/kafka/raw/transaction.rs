//! Transactions of a producer: the calls that a [`Client`] with a `transactional.id` has beside the others.

use super::client::millis;
use super::{Client, Code, PartitionList};
use rdkafka_sys::bindings as sys;
use std::ffi::{CStr, CString};
use std::fmt;
use std::ptr::NonNull;
use std::time::Duration;

/// Why a call was not answered with success.
#[derive(Clone, Debug)]
pub(crate) struct TransactionError {
    pub(crate) code: Code,
    text: String,
}

impl fmt::Display for TransactionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.text)
    }
}

impl TransactionError {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> TransactionError {
        TransactionError { code, text: text.into() }
    }
}

impl Client {
    /// Ends what the same `transactional.id` had open, and fences who had it.
    pub(crate) fn init_transactions(&self, timeout: Duration) -> Result<(), TransactionError> {
        // SAFETY: a valid producer; the error object, if there is one, is ours.
        self.outcome(unsafe { sys::rd_kafka_init_transactions(self.pointer(), millis(timeout)) })
    }

    /// Does not contact a broker.
    pub(crate) fn begin_transaction(&self) -> Result<(), TransactionError> {
        // SAFETY: as above.
        self.outcome(unsafe { sys::rd_kafka_begin_transaction(self.pointer()) })
    }

    /// Why the client threw away the records of the transaction that is open: a call that it refuses, because that is open,
    /// is answered with the reason.
    pub(crate) fn why_abandoned(&self) -> Option<TransactionError> {
        self.begin_transaction().err()
    }

    /// Makes the group's offsets part of the transaction. The group has no members.
    pub(crate) fn send_offsets_to_transaction(
        &self,
        list: &PartitionList,
        group: &str,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        let name = CString::new(group)
            .map_err(|_| TransactionError::new(Code::INVALID_ARG, "the name of the group has a zero byte"))?;
        // SAFETY: a valid producer and list, which is copied; the description of the group is made from a string that
        // ends, is never null, and is destroyed after the call, which copies it.
        unsafe {
            let group = sys::rd_kafka_consumer_group_metadata_new(name.as_ptr());
            let error = sys::rd_kafka_send_offsets_to_transaction(
                self.pointer(),
                list.pointer(),
                group,
                millis(timeout),
            );
            sys::rd_kafka_consumer_group_metadata_destroy(group);
            self.outcome(error)
        }
    }

    /// Waits until every record is written; false when that takes longer than `timeout`, also because one was not written and the
    /// report of it was not taken yet.
    pub(crate) fn flush(&self, timeout: Duration) -> bool {
        // SAFETY: a valid producer.
        Code::from(unsafe { sys::rd_kafka_flush(self.pointer(), millis(timeout)) }).is_ok()
    }

    /// Records that are neither written nor reported.
    pub(crate) fn on_their_way(&self) -> usize {
        // SAFETY: a valid client.
        usize::try_from(unsafe { sys::rd_kafka_outq_len(self.pointer()) }).unwrap_or(0)
    }

    /// All delivery reports must have been served before, or the call waits for them in vain.
    pub(crate) fn commit_transaction(&self, timeout: Duration) -> Result<(), TransactionError> {
        // SAFETY: a valid producer; the error object, if there is one, is ours.
        self.outcome(unsafe { sys::rd_kafka_commit_transaction(self.pointer(), millis(timeout)) })
    }

    fn outcome(&self, error: *mut sys::rd_kafka_error_t) -> Result<(), TransactionError> {
        let Some(error) = NonNull::new(error) else { return Ok(()) };
        // SAFETY: a valid error object that is ours; its text is copied before it goes.
        unsafe {
            let code = Code::from(sys::rd_kafka_error_code(error.as_ptr()));
            let text =
                CStr::from_ptr(sys::rd_kafka_error_string(error.as_ptr())).to_string_lossy().into_owned();
            sys::rd_kafka_error_destroy(error.as_ptr());
            Err(TransactionError { code, text })
        }
    }
}
