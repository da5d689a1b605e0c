//! Exactly once when the answer to the end of a transaction is lost, and nobody is killed.

use tidegate_harness::proxy::api;
use tidegate_harness::workload::messages;
use tidegate_harness::{Broker, Loss, OffsetWatch, Proxy, Workload};

use crate::case::{Case, DEADLINE, FlowText};

/// How often an answer is lost under a test. Each kind of loss comes once in four.
const ROUNDS: u64 = 10;

/// A copy under exactly-once whose client and process wait no longer for an answer than a test can.
fn impatient(case: &Case, proxy: &Proxy) -> FlowText {
    case.copy()
        .exactly_once()
        .top("exactly_once: { transaction_timeout: 2s, request_timeout: 1s }")
        .producer("extra: { socket.timeout.ms: 500 }")
        .producer_at(&proxy.address())
}

/// Loses the ends of this many transactions, in turn with the client's repeats of the request (then the process never learns what
/// happened) and without, on connections that are cut and that are not. The first instance of a producer that is replaced
/// writes a token, so each round begins with output that nothing happens to.
pub(crate) fn lose_the_ends_of_transactions(broker: &Broker, rounds: u64, is_done: bool) {
    let Some(proxy) = broker.proxy() else { return };
    let case = Case::on(broker.kafka(), "lost-answers", 2);
    case.make_control_topic();
    // A part before the rounds, two in each, and one behind them.
    let count = 2 + 2 * rounds as usize;
    let workload = Workload { partitions: 2, records: 100 * count, ..Workload::default() };
    let events = workload.events();
    let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
    let mut cluster = case.launch(&impatient(&case, &proxy)).recovery(&case.store()).start();
    cluster.wait_ready(DEADLINE);
    let mut parts = events.chunks(100);
    let mut next_part = || messages(parts.next().unwrap_or_default());
    case.kafka.produce(&case.input, &next_part());
    case.wait_caught_up();
    let producers_before = proxy.requests(api::INIT_PRODUCER_ID);
    for round in 0..rounds {
        let (with_repeats, is_cut) = (round % 2 == 0, round % 4 < 2);
        proxy.lose(Loss { api_key: api::END_TRANSACTION, is_done, with_repeats, is_cut });
        case.kafka.produce(&case.input, &next_part());
        cluster.wait_for("the end of the transaction is lost", DEADLINE, |_| proxy.lost() == round + 1);
        case.wait_caught_up();
        case.kafka.produce(&case.input, &next_part());
        case.wait_caught_up();
    }
    assert_eq!(proxy.lost(), rounds, "ends of transactions that were lost");
    assert!(proxy.lost_repeats() > 0, "the client repeated nothing");
    let producers = proxy.requests(api::INIT_PRODUCER_ID) - producers_before;
    assert!(producers >= rounds, "a producer that missed an answer began another transaction: {producers}");
    case.kafka.produce(&case.input, &next_part());
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    case.wait_caught_up();
    case.assert_copied_once(&events);
    case.kafka.wait_nothing_open(&case.output, DEADLINE);
    watch.assert_only_rises();
}

// E12 P37 P38 fault E4 fault E11 I1 I2 I4
#[test]
fn an_end_of_a_transaction_that_happened_and_was_never_confirmed_repeats_nothing() {
    lose_the_ends_of_transactions(Broker::shared(), ROUNDS, true);
}

// E12 P38 fault E11 I1 I2 I4
#[test]
fn an_end_of_a_transaction_that_never_reached_the_broker_loses_nothing() {
    lose_the_ends_of_transactions(Broker::shared(), ROUNDS, false);
}

// P38 fault E11: the transaction of a token is one like any other.
#[test]
fn a_producer_that_is_replaced_bears_the_loss_of_its_first_answers_too() {
    let Some(proxy) = Broker::shared().proxy() else { return };
    let case = Case::new("lost-token", 1);
    case.make_control_topic();
    let workload = Workload { partitions: 1, records: 500, ..Workload::default() };
    let events = workload.events();
    let mut cluster = case.launch(&impatient(&case, &proxy)).recovery(&case.store()).start();
    cluster.wait_ready(DEADLINE);
    let mut parts = events.chunks(100).map(messages);
    let mut produce = || case.kafka.produce(&case.input, &parts.next().unwrap_or_default());
    produce();
    case.wait_caught_up();
    let mut lost = 0;
    for is_done in [true, false] {
        let producers_before = proxy.requests(api::INIT_PRODUCER_ID);
        // An instance that missed an answer is replaced before the next transaction, and writes a token then.
        for with_repeats in [false, true] {
            proxy.lose(Loss { api_key: api::END_TRANSACTION, is_done, with_repeats, is_cut: !with_repeats });
            produce();
            lost += 1;
            cluster.wait_for("the end of a transaction is lost", DEADLINE, |_| proxy.lost() == lost);
            case.wait_caught_up();
        }
        let producers = proxy.requests(api::INIT_PRODUCER_ID) - producers_before;
        assert!(producers >= 2, "it was no token's end that was lost: {producers} producers");
    }
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    case.assert_copied_once(&events);
}
