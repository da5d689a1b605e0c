//! Windows: which records belong together, when a window is closed, and what comes out of it.
//!
//! Everything here is pure: records and watermarks go in, results and state rows come out. What comes out
//! depends on the records of each partition and on their partition's watermarks, and on nothing else: not on
//! how partitions interleave, how many workers there are, how often the step acted, or on a restore in
//! between. Three rules make it so:
//!
//! - A tumbling or sliding window takes a record unless the watermark that the record carries (its own
//!   partition's, just before it) has closed the window: `end + lateness <= watermark`. The step acts on a
//!   window only when the watermark of *every* partition has closed it, so what it has given out can no
//!   longer change.
//! - A session takes a record unless its event time plus lateness is below that watermark. Sessions join when
//!   they are at most the gap apart, so a session is closed one millisecond later than a window with the same
//!   end would be: when `end + lateness < watermark`.
//! - Aggregates do not care about order: sums of doubles are exact before they are rounded once, `first` and
//!   `last` order by (event time, topic, partition, offset), `min` and `max` use a total order.
//!
//! The end of a bounded run gives out every open window without forgetting it ([`WindowState::fire_open`]):
//! a later run that adds to such a window gives it out again, whole.

mod aggregate;
mod columns;
mod number;
mod order;
mod panes;
mod sessions;
mod spec;
mod state;
mod step;

pub use aggregate::{
    Aggregate, AggregateError, Aggregator, And, Count, First, Last, Max, Mean, Min, Sum, count, first, last,
    max, mean, min, sum,
};
pub use columns::{Column, ColumnKind, Columns, Scalar};
pub use number::{ExactSum, Number, Numeric};
pub use order::{Order, PartitionNames};
pub use spec::{Session, Sliding, Tumbling, WindowError, WindowKind, WindowSpec};
pub use state::{Fired, WindowRecord, WindowState, Windowed};
pub use step::{LatePolicy, WINDOW_STATE_VERSION, WindowLogic, WindowSettings, window, window_of};
