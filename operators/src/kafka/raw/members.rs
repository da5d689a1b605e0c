//! The members of a consumer group, as its coordinator describes them.

use super::queue::Options;
use super::{Code, Queue};
use rdkafka_sys::bindings as sys;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::time::Duration;

/// A client that is in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupMember {
    pub(crate) client_id: String,
    /// As the coordinator saw it connect.
    pub(crate) host: String,
}

impl fmt::Display for GroupMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Java's form of an address has a slash before it.
        write!(f, "client `{}` on {}", self.client_id, self.host.trim_start_matches('/'))
    }
}

impl Queue {
    /// Asks for the members of a group without waiting; the answer comes to this queue.
    pub(crate) fn ask_members(&self, group: &str, timeout: Duration, tag: usize) -> Result<(), String> {
        let group = CString::new(group).map_err(|_| "the name of the group has a zero byte".to_owned())?;
        let mut groups: [*const c_char; 1] = [group.as_ptr()];
        let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS;
        let options = Options::new(&self.client, operation, timeout, tag)?;
        // SAFETY: valid handles, and an array of strings that end with its length; the request copies all of it.
        unsafe {
            sys::rd_kafka_DescribeConsumerGroups(
                self.client.pointer(),
                groups.as_mut_ptr(),
                groups.len(),
                options.pointer(),
                self.handle.as_ptr(),
            );
        }
        Ok(())
    }
}

/// The members of the groups of an answer; a group that does not exist has none.
///
/// # Safety
/// `result` is valid and nobody changes it meanwhile.
pub(super) unsafe fn members_of(
    result: *const sys::rd_kafka_DescribeConsumerGroups_result_t,
) -> Result<Vec<GroupMember>, Code> {
    let mut members = Vec::new();
    let mut count = 0;
    // SAFETY: the caller's promise; the groups are an array with its length, an error may be null, and each group has
    // as many members as it counts.
    unsafe {
        let groups = sys::rd_kafka_DescribeConsumerGroups_result_groups(result, &mut count);
        for index in 0..count {
            let group = *groups.add(index);
            let error = sys::rd_kafka_ConsumerGroupDescription_error(group);
            let error = if error.is_null() { Code::OK } else { Code::from(sys::rd_kafka_error_code(error)) };
            if error != Code::GROUP_ID_NOT_FOUND {
                error.ok()?;
            }
            for number in 0..sys::rd_kafka_ConsumerGroupDescription_member_count(group) {
                let member = sys::rd_kafka_ConsumerGroupDescription_member(group, number);
                members.push(GroupMember {
                    client_id: text(sys::rd_kafka_MemberDescription_client_id(member)),
                    host: text(sys::rd_kafka_MemberDescription_host(member)),
                });
            }
        }
    }
    Ok(members)
}

/// # Safety
/// `text` is null or a string that ends.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
