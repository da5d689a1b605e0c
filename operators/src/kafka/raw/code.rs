//! Error codes as numbers, with librdkafka's names and texts.

use rdkafka_sys::bindings as sys;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;

/// An error code of a broker (positive) or of the client library (negative); 0 is success.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Code(pub(crate) i32);

macro_rules! codes {
    ($($name:ident = $theirs:ident),+ $(,)?) => {
        impl Code { $(pub(crate) const $name: Code = Code(sys::rd_kafka_resp_err_t::$theirs as i32);)+ }
    };
}

codes! {
    OK = RD_KAFKA_RESP_ERR_NO_ERROR,
    TRANSPORT = RD_KAFKA_RESP_ERR__TRANSPORT,
    RESOLVE = RD_KAFKA_RESP_ERR__RESOLVE,
    PARTITION_EOF = RD_KAFKA_RESP_ERR__PARTITION_EOF,
    UNKNOWN_PARTITION = RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION,
    UNKNOWN_TOPIC = RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC,
    ALL_BROKERS_DOWN = RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN,
    INVALID_ARG = RD_KAFKA_RESP_ERR__INVALID_ARG,
    TIMED_OUT = RD_KAFKA_RESP_ERR__TIMED_OUT,
    QUEUE_FULL = RD_KAFKA_RESP_ERR__QUEUE_FULL,
    WAIT_COORD = RD_KAFKA_RESP_ERR__WAIT_COORD,
    IN_PROGRESS = RD_KAFKA_RESP_ERR__IN_PROGRESS,
    TIMED_OUT_QUEUE = RD_KAFKA_RESP_ERR__TIMED_OUT_QUEUE,
    WAIT_CACHE = RD_KAFKA_RESP_ERR__WAIT_CACHE,
    RETRY = RD_KAFKA_RESP_ERR__RETRY,
    UNSUPPORTED_FEATURE = RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE,
    FATAL = RD_KAFKA_RESP_ERR__FATAL,
    FENCED = RD_KAFKA_RESP_ERR__FENCED,
    PURGE_QUEUE = RD_KAFKA_RESP_ERR__PURGE_QUEUE,
    PURGE_INFLIGHT = RD_KAFKA_RESP_ERR__PURGE_INFLIGHT,
    INVALID_DIFFERENT_RECORD = RD_KAFKA_RESP_ERR__INVALID_DIFFERENT_RECORD,
    AUTO_OFFSET_RESET = RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET,
    LOG_TRUNCATION = RD_KAFKA_RESP_ERR__LOG_TRUNCATION,
    OFFSET_OUT_OF_RANGE = RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE,
    INVALID_MSG = RD_KAFKA_RESP_ERR_INVALID_MSG,
    UNKNOWN_TOPIC_OR_PART = RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
    LEADER_NOT_AVAILABLE = RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
    NOT_LEADER_FOR_PARTITION = RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
    REQUEST_TIMED_OUT = RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
    BROKER_NOT_AVAILABLE = RD_KAFKA_RESP_ERR_BROKER_NOT_AVAILABLE,
    REPLICA_NOT_AVAILABLE = RD_KAFKA_RESP_ERR_REPLICA_NOT_AVAILABLE,
    MSG_SIZE_TOO_LARGE = RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
    NETWORK_EXCEPTION = RD_KAFKA_RESP_ERR_NETWORK_EXCEPTION,
    COORDINATOR_LOAD_IN_PROGRESS = RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE = RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE,
    NOT_COORDINATOR = RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
    TOPIC_EXCEPTION = RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION,
    RECORD_LIST_TOO_LARGE = RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE,
    NOT_ENOUGH_REPLICAS = RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    TOPIC_AUTHORIZATION_FAILED = RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED = RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED,
    CLUSTER_AUTHORIZATION_FAILED = RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED,
    INVALID_TIMESTAMP = RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP,
    INVALID_TRANSACTION_TIMEOUT = RD_KAFKA_RESP_ERR_INVALID_TRANSACTION_TIMEOUT,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KAFKA_STORAGE_ERROR = RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR,
    SASL_AUTHENTICATION_FAILED = RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED,
    GROUP_ID_NOT_FOUND = RD_KAFKA_RESP_ERR_GROUP_ID_NOT_FOUND,
    FENCED_LEADER_EPOCH = RD_KAFKA_RESP_ERR_FENCED_LEADER_EPOCH,
    UNKNOWN_LEADER_EPOCH = RD_KAFKA_RESP_ERR_UNKNOWN_LEADER_EPOCH,
    OFFSET_NOT_AVAILABLE = RD_KAFKA_RESP_ERR_OFFSET_NOT_AVAILABLE,
    INVALID_RECORD = RD_KAFKA_RESP_ERR_INVALID_RECORD,
    UNSTABLE_OFFSET_COMMIT = RD_KAFKA_RESP_ERR_UNSTABLE_OFFSET_COMMIT,
    THROTTLING_QUOTA_EXCEEDED = RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED,
}

impl Code {
    pub(crate) fn is_ok(self) -> bool {
        self == Code::OK
    }

    /// `Err` unless it is success.
    pub(crate) fn ok(self) -> Result<(), Code> {
        if self.is_ok() { Ok(()) } else { Err(self) }
    }

    /// Whether the client itself says so, without an answer of a broker.
    pub(crate) fn is_from_the_client(self) -> bool {
        self.0 < 0
    }

    /// Whether waiting and asking again may help: a connection, a leader or a coordinator that is away.
    pub(crate) fn is_transient(self) -> bool {
        matches!(
            self,
            Code::TRANSPORT
                | Code::RESOLVE
                | Code::ALL_BROKERS_DOWN
                | Code::TIMED_OUT
                | Code::TIMED_OUT_QUEUE
                | Code::WAIT_COORD
                | Code::WAIT_CACHE
                | Code::IN_PROGRESS
                | Code::RETRY
                | Code::LEADER_NOT_AVAILABLE
                | Code::NOT_LEADER_FOR_PARTITION
                | Code::REQUEST_TIMED_OUT
                | Code::BROKER_NOT_AVAILABLE
                | Code::REPLICA_NOT_AVAILABLE
                | Code::NETWORK_EXCEPTION
                | Code::COORDINATOR_LOAD_IN_PROGRESS
                | Code::COORDINATOR_NOT_AVAILABLE
                | Code::NOT_COORDINATOR
                | Code::NOT_ENOUGH_REPLICAS
                | Code::NOT_ENOUGH_REPLICAS_AFTER_APPEND
                | Code::KAFKA_STORAGE_ERROR
                | Code::FENCED_LEADER_EPOCH
                | Code::UNKNOWN_LEADER_EPOCH
                | Code::OFFSET_NOT_AVAILABLE
                | Code::UNSTABLE_OFFSET_COMMIT
                | Code::THROTTLING_QUOTA_EXCEEDED
        )
    }

    /// Whether the topic or the partition is not there (which may pass while metadata travels).
    pub(crate) fn is_missing(self) -> bool {
        matches!(self, Code::UNKNOWN_TOPIC | Code::UNKNOWN_PARTITION | Code::UNKNOWN_TOPIC_OR_PART)
    }

    /// Whether a broker that answers so to a batch will never take one of its records, and may take the others.
    pub(crate) fn refuses_a_batch(self) -> bool {
        matches!(
            self,
            Code::MSG_SIZE_TOO_LARGE
                | Code::RECORD_LIST_TOO_LARGE
                | Code::INVALID_TIMESTAMP
                | Code::INVALID_RECORD
                | Code::INVALID_MSG
                | Code::INVALID_DIFFERENT_RECORD
        )
    }

    /// Whether a record was only thrown away because of something else.
    pub(crate) fn is_purged(self) -> bool {
        matches!(self, Code::PURGE_QUEUE | Code::PURGE_INFLIGHT)
    }

    /// Whether the broker refuses this client.
    pub(crate) fn is_denied(self) -> bool {
        matches!(
            self,
            Code::TOPIC_AUTHORIZATION_FAILED
                | Code::GROUP_AUTHORIZATION_FAILED
                | Code::CLUSTER_AUTHORIZATION_FAILED
                | Code::TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                | Code::SASL_AUTHENTICATION_FAILED
        )
    }
}

impl From<sys::rd_kafka_resp_err_t> for Code {
    fn from(code: sys::rd_kafka_resp_err_t) -> Code {
        Code(code as i32)
    }
}

type Describe = unsafe extern "C" fn(c_int) -> *const c_char;

fn describe(function: unsafe extern "C" fn(sys::rd_kafka_resp_err_t) -> *const c_char, code: Code) -> String {
    // SAFETY: in C both functions take the enum as an int and look it up in a table, answering with a static
    // string for every number, known or not. Only the type of the argument changes, from `repr(i32)` to i32,
    // so that an unknown number never becomes a Rust enum.
    let text = unsafe {
        let function: Describe = std::mem::transmute(function);
        CStr::from_ptr(function(code.0))
    };
    text.to_string_lossy().into_owned()
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(sys::rd_kafka_err2str, *self))
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(sys::rd_kafka_err2name, *self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_the_bindings_do_not_know_has_a_text() {
        assert!(!Code(31_000).to_string().is_empty());
        assert_eq!(format!("{:?}", Code::MSG_SIZE_TOO_LARGE), "MSG_SIZE_TOO_LARGE");
    }
}
