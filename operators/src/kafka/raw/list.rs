//! A list of partitions with offsets, as the library takes and gives it.

use super::Code;
use rdkafka_sys::bindings as sys;
use std::ffi::{CStr, CString};
use std::ptr::NonNull;
use tidegate_recovery::TopicPartition;

/// A list of partitions with an offset each.
pub(crate) struct PartitionList(NonNull<sys::rd_kafka_topic_partition_list_t>);

/// One element of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartitionOffset {
    pub(crate) partition: TopicPartition,
    pub(crate) offset: i64,
    pub(crate) error: Code,
}

impl PartitionList {
    /// The given partitions, in their order. A topic name with a zero byte names no topic and is left out.
    pub(crate) fn new<'a>(partitions: impl IntoIterator<Item = (&'a TopicPartition, i64)>) -> PartitionList {
        // SAFETY: no preconditions; the library aborts when it has no memory.
        let handle = unsafe { sys::rd_kafka_topic_partition_list_new(8) };
        let list = PartitionList(NonNull::new(handle).expect("a list is never null"));
        for (partition, offset) in partitions {
            let Ok(topic) = CString::new(&*partition.topic) else { continue };
            // SAFETY: a valid list and a string that ends; the element that comes back stays valid until the
            // list grows, and is written to at once.
            unsafe {
                let element = sys::rd_kafka_topic_partition_list_add(
                    list.pointer(),
                    topic.as_ptr(),
                    partition.partition,
                );
                (*element).offset = offset;
            }
        }
        list
    }

    pub(crate) fn pointer(&self) -> *mut sys::rd_kafka_topic_partition_list_t {
        self.0.as_ptr()
    }

    /// The elements as they now stand.
    pub(crate) fn elements(&self) -> Vec<PartitionOffset> {
        // SAFETY: a valid list that is not changed while it is read.
        unsafe { elements_of(self.pointer()) }
    }
}

impl Drop for PartitionList {
    fn drop(&mut self) {
        // SAFETY: the only owner of a valid list.
        unsafe { sys::rd_kafka_topic_partition_list_destroy(self.pointer()) };
    }
}

/// The elements of a list.
///
/// # Safety
/// `list` is valid and nobody changes it meanwhile.
pub(super) unsafe fn elements_of(list: *const sys::rd_kafka_topic_partition_list_t) -> Vec<PartitionOffset> {
    // SAFETY: the caller's promise; a list holds `cnt` elements at `elems`.
    unsafe {
        (0..usize::try_from((*list).cnt).unwrap_or(0))
            .map(|index| element_of((*list).elems.add(index)))
            .collect()
    }
}

/// One element.
///
/// # Safety
/// `element` is valid and nobody changes it meanwhile.
pub(super) unsafe fn element_of(element: *const sys::rd_kafka_topic_partition_t) -> PartitionOffset {
    // SAFETY: the caller's promise; the topic is a string that ends; the error is read as a number.
    unsafe {
        PartitionOffset {
            partition: TopicPartition::new(
                CStr::from_ptr((*element).topic).to_string_lossy(),
                (*element).partition,
            ),
            offset: (*element).offset,
            error: Code((&raw const (*element).err).cast::<i32>().read()),
        }
    }
}
