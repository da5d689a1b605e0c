//! The allocator of the process.
//!
//! librdkafka allocates each message by itself, on another thread than the one that frees it, which is what the system's
//! allocator is worst at. With mimalloc, which hands memory back to the thread that it came from without a lock, the
//! benchmark's pass-through flow took a tenth less CPU, its windows in Rust a quarter, its windows in YAML two fifths. It replaces `malloc` and `free` too, so that the
//! client's own allocations are its as well.
//!
//! A program that brings an allocator of its own depends on `tidegate` without the feature `mimalloc`.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
