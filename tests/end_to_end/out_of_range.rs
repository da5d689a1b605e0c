//! Records that are deleted before a running flow has read them: loud, by policy, counted.

use tidegate_harness::{Broker, Proxy, checker};

use crate::case::{Case, DEADLINE, numbered};
use crate::status;

/// A flow that has read 10 records, and was then cut off while 20 more came and the first 10 of these were deleted.
fn overtaken(broker: &Broker, proxy: &Proxy, policy: &str) -> (Case, tidegate_harness::Cluster) {
    let case = Case::on(broker.kafka(), "overtaken", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let flow = case
        .copy()
        .consumer_at(&proxy.address())
        .consumer(&format!("on_out_of_range: {policy}"))
        .consumer("extra: { reconnect.backoff.max.ms: \"200\" }");
    let cluster = case.launch(&flow).start();
    case.wait_caught_up();
    proxy.cut();
    case.kafka.produce(&case.input, &numbered(10..30, 1));
    case.kafka.delete_records(&case.input, 0, 20);
    proxy.heal();
    (case, cluster)
}

/// A flow whose policy is to fail ends when records are deleted before it has read them.
pub(crate) fn end_when_overtaken(broker: &Broker) {
    let Some(proxy) = broker.proxy() else { return };
    let (case, mut cluster) = overtaken(broker, &proxy, "fail");
    cluster.expect_exit(65, DEADLINE);
    cluster.assert_one_line_with(0, "OFFSET_OUT_OF_RANGE");
    cluster.assert_one_line_with(0, "its log begins at 20: 10 offsets were deleted before they were read");
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..10);
    assert_eq!(
        case.kafka.group_offsets(&case.group, &case.input)[&0],
        10,
        "an offset was committed past them"
    );
}

// K11 K13 A24
#[test]
fn records_that_retention_takes_from_a_running_flow_end_it_with_65_and_their_number() {
    end_when_overtaken(Broker::shared());
}

// K11 A24
#[test]
fn by_policy_a_running_flow_goes_on_behind_deleted_records_and_counts_them_everywhere() {
    let Some(proxy) = Broker::shared().proxy() else { return };
    for (policy, lost, read) in [("earliest", 10_u32, 20..30), ("latest", 20, 30..30)] {
        let (case, mut cluster) = overtaken(Broker::shared(), &proxy, policy);
        case.wait_caught_up();
        case.kafka.produce(&case.input, &numbered(30..35, 1));
        case.wait_caught_up();
        checker::assert_exactly(&case.kafka.drain(&case.output), (0..10).chain(read).chain(30..35));
        cluster.assert_one_line_with(0, "OFFSET_OUT_OF_RANGE");
        cluster.assert_one_line_with(0, &format!("{lost} offsets of {}:0 were not read", case.input));
        cluster.wait_for("the loss is shown", DEADLINE, |cluster| {
            let shown = status::partition(cluster, &case.input, 0);
            shown.is_some_and(|shown| shown["lost"] == lost)
                && status::metric(cluster, 0, "tidegate_lost_offsets_total") == Some(f64::from(lost))
        });
        cluster.terminate_all();
        cluster.expect_exit(0, DEADLINE);
    }
}
