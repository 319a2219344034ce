//! Lines without nodes and without clients.

use super::*;
use crate::lock::SameToken;

const TTL: Duration = Duration::from_secs(10);
const HELD: NotGranted = NotGranted::Held {
    remaining: Some(Duration::from_secs(10)),
    may_be_free: false,
    same_token: SameToken::Unknown,
};
/// Rounds in which two threads meet.
const ROUNDS: usize = 1_000_000;
const CLASHED: NotGranted =
    NotGranted::Held { remaining: None, may_be_free: true, same_token: SameToken::Unknown };

/// Makes queues over five nodes, for at most three waiters and two hand-overs in a row.
fn queues() -> Queues {
    let config = LocksConfig {
        nodes: (1..=5).map(|n| format!("redis://10.0.0.{n}").parse().unwrap()).collect(),
        max_waiters: 3,
        max_handovers: 2,
        ..LocksConfig::default()
    };
    Queues::new(&config, Arc::default())
}

fn line_up(ticket: u64) -> LineUp {
    LineUp { token: Token::from(&format!("t{ticket}")), ttl: TTL, shared: false, card: None }
}

fn join(queues: &Queues, ticket: u64) {
    queues.join(&Key::from("k"), line_up(ticket), ticket).unwrap();
}

/// Returns the waiter's turn: `ask` with the cause, `take`, or `wait`.
fn turn(queues: &Queues, ticket: u64) -> String {
    match queues.turn(b"k", ticket, Waker::noop()) {
        WaiterTurn::Ask(None) => "ask".into(),
        WaiterTurn::Ask(Some(cause)) => format!("ask {cause:?}"),
        WaiterTurn::Take(_) => "take".into(),
        WaiterTurn::Wait(_) => "wait".into(),
    }
}

/// Returns the ticket of the next holder; `None` if the lock is released.
fn next(queues: &Queues) -> Option<u64> {
    match queues.next(b"k") {
        NextHolder::HandTo { ticket, .. } => Some(ticket),
        nobody => {
            queues.released(b"k", &nobody);
            None
        }
    }
}

/// Makes queues with a head which knows that the lock is held.
fn held() -> Queues {
    let queues = queues();
    join(&queues, 1);
    assert_eq!(turn(&queues, 1), "ask");
    queues.refused(b"k", 1, &HELD);
    for node in 0..5 {
        queues.subscribed(node, b"k");
    }
    // The lock may have been released before the subscriptions.
    assert_eq!(turn(&queues, 1), "ask Retry");
    queues.refused(b"k", 1, &HELD);
    assert_eq!(turn(&queues, 1), "wait");
    queues
}

#[tokio::test(start_paused = true)]
async fn only_the_head_asks_and_the_next_one_follows() {
    let queues = queues();
    for ticket in 1..=3 {
        join(&queues, ticket);
    }
    assert_eq!([1, 2, 3].map(|ticket| turn(&queues, ticket)), ["ask", "wait", "wait"]);
    assert_eq!(turn(&queues, 1), "wait", "it is asking");
    queues.leave(b"k", 1, Departure::Granted(TTL));
    assert_eq!([2, 3].map(|ticket| turn(&queues, ticket)), ["wait", "wait"], "it is held");
    tokio::time::advance(TTL + EXPIRY_SLACK).await;
    assert_eq!([2, 3].map(|ticket| turn(&queues, ticket)), ["ask Retry", "wait"]);
}

#[tokio::test(start_paused = true)]
async fn behind_a_reader_all_ask_up_to_the_next_writer() {
    let config = LocksConfig { max_waiters: 9, ..LocksConfig::default() };
    let queues = Queues::new(&config, Arc::default());
    assert!(queues.is_nobody_there(b"k"));
    for ticket in 1..=5 {
        let wants = LineUp { shared: ticket != 4, ..line_up(ticket) };
        queues.join(&Key::from("k"), wants, ticket).unwrap();
    }
    assert!(!queues.is_nobody_there(b"k"), "a reader that comes now stands in line");
    let turns = |tickets: [u64; 4]| tickets.map(|ticket| turn(&queues, ticket));
    assert_eq!(
        (turn(&queues, 1), turns([2, 3, 4, 5])),
        ("ask".into(), ["wait"; 4].map(Into::into))
    );
    queues.leave(b"k", 1, Departure::Granted(TTL));
    let asks = ["ask Release", "ask Release", "wait", "wait"];
    assert_eq!(turns([2, 3, 4, 5]), asks);
    // One that is refused waits in its place, and asks again as the head.
    queues.refused(b"k", 3, &HELD);
    assert_eq!(turn(&queues, 3), "wait");
    queues.leave(b"k", 2, Departure::Granted(TTL));
    assert_eq!((turn(&queues, 3), turn(&queues, 4)), ("ask Release".into(), "wait".into()));
    queues.leave(b"k", 3, Departure::Granted(TTL));
    // The writer asks alone, and readers behind it come later.
    assert_eq!((turn(&queues, 4), turn(&queues, 5)), ("ask Release".into(), "wait".into()));
    queues.pause(Some(Instant::now() + TTL));
    assert!(!queues.is_nobody_there(b"other"), "nobody is granted a lock");
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_bounded_and_whoever_leaves_makes_room() {
    let queues = queues();
    for ticket in 1..=3 {
        join(&queues, ticket);
    }
    let full = queues.join(&Key::from("k"), line_up(4), 4);
    assert_eq!(full, Err(NotGranted::QueueFull { limit: 3, permits: false }));
    queues.join(&Key::from("other"), line_up(4), 4).unwrap();
    queues.leave(b"k", 2, Departure::Gone);
    join(&queues, 5);
    queues.leave(b"k", 9, Departure::Gone);
    assert_eq!([1, 3, 5].map(|ticket| turn(&queues, ticket)), ["ask", "wait", "wait"]);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_leaves_while_it_asks_leaves_everything_open() {
    let queues = queues();
    join(&queues, 1);
    join(&queues, 2);
    assert_eq!(turn(&queues, 1), "ask");
    queues.leave(b"k", 1, Departure::Gone);
    assert_eq!(turn(&queues, 2), "ask Retry");
}

#[tokio::test(start_paused = true)]
async fn a_quorum_must_tell_of_a_release() {
    let queues = held();
    queues.heard_of_release(0, b"k");
    queues.heard_of_release(0, b"k");
    queues.heard_of_release(4, b"k");
    assert_eq!(turn(&queues, 1), "wait");
    queues.heard_of_release(2, b"k");
    assert_eq!(turn(&queues, 1), "ask Message");
    for node in 0..3 {
        queues.heard_of_release(node, b"k");
    }
    queues.refused(b"k", 1, &HELD);
    assert_eq!(turn(&queues, 1), "ask Message", "it was told while it asked");
    join(&queues, 2);
    (0..3).for_each(|node| queues.heard_of_release(node, b"k"));
    queues.leave(b"k", 1, Departure::Granted(TTL));
    assert_eq!(turn(&queues, 2), "wait", "that was of the release before the grant");
}

#[tokio::test(start_paused = true)]
async fn who_listens_sleeps_long_and_who_does_not_looks_often() {
    let queues = held();
    tokio::time::advance(LISTENING / 3).await;
    assert_eq!(turn(&queues, 1), "wait");
    (0..3).for_each(|node| queues.unsubscribed(node, [b"k".to_vec()].iter()));
    assert_eq!([2, 3].map(|node| queues.untold(node).len()), [1, 0]);
    tokio::time::advance(POLLING.1).await;
    assert_eq!(turn(&queues, 1), "ask Retry");
    let soon = NotGranted::Held {
        remaining: Some(Duration::from_millis(3)),
        may_be_free: false,
        same_token: SameToken::Unknown,
    };
    queues.refused(b"k", 1, &soon);
    tokio::time::advance(Duration::from_millis(4)).await;
    assert_eq!(turn(&queues, 1), "ask Expiry");
    queues.refused(b"k", 1, &HELD);
    tokio::time::advance(POLLING.1).await;
    assert_eq!(turn(&queues, 1), "ask Retry", "nobody would tell");
}

#[tokio::test(start_paused = true)]
async fn those_who_clashed_do_not_follow_each_others_giving_up() {
    let queues = held();
    (0..3).for_each(|node| queues.heard_of_release(node, b"k"));
    assert_eq!(turn(&queues, 1), "ask Message");
    queues.refused(b"k", 1, &CLASHED);
    (0..5).for_each(|node| queues.heard_of_release(node, b"k"));
    assert_eq!(turn(&queues, 1), "wait");
    tokio::time::advance(CONTENDING.0).await;
    assert_eq!(turn(&queues, 1), "ask Retry");
}

#[tokio::test(start_paused = true)]
async fn a_release_finds_the_head_unless_it_asks_already() {
    let queues = held();
    assert_eq!(next(&queues), Some(1));
    assert_eq!(turn(&queues, 1), "wait", "it is being handed over");
    queues.refused(b"k", 1, &HELD);
    (0..3).for_each(|node| queues.heard_of_release(node, b"k"));
    assert_eq!(turn(&queues, 1), "ask Message");
    assert_eq!(next(&queues), None, "its request is before the release");
    queues.refused(b"k", 1, &HELD);
    assert_eq!(turn(&queues, 1), "ask Release");
    assert_eq!(queues.count.load(Ordering::Relaxed), 1);
    assert!(matches!(queues.next(b"other"), NextHolder::Nobody));
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_before_the_release_is_asked_again() {
    let queues = held();
    (0..3).for_each(|node| queues.heard_of_release(node, b"k"));
    assert_eq!(turn(&queues, 1), "ask Message");
    let busy = queues.next(b"k");
    assert!(matches!(busy, NextHolder::Nobody), "it is asking");
    queues.refused(b"k", 1, &HELD);
    assert_eq!(turn(&queues, 1), "wait", "the release is not yet on its way");
    queues.released(b"k", &busy);
    assert_eq!(turn(&queues, 1), "ask Release");
    queues.leave(b"k", 1, Departure::Gone);
    // A request comes too early as well if it is sent after the release found no waiter, but before the release.
    let nobody = queues.next(b"k");
    join(&queues, 2);
    assert_eq!(turn(&queues, 2), "ask");
    queues.released(b"k", &nobody);
    queues.refused(b"k", 2, &HELD);
    assert_eq!(turn(&queues, 2), "ask Release");
    // A head that is asking when other proxies are given their turn asks once more, too.
    queues.refused(b"k", 2, &HELD);
    assert_eq!(next(&queues), Some(2));
    queues.heard_of_listeners(b"k", Some(2));
    queues.refused(b"k", 2, &HELD);
    let others = queues.next(b"k");
    assert!(matches!(others, NextHolder::Others));
    (0..3).for_each(|node| queues.heard_of_release(node, b"k"));
    assert_eq!(turn(&queues, 2), "ask Message");
    queues.released(b"k", &others);
    queues.refused(b"k", 2, &HELD);
    assert_eq!(turn(&queues, 2), "ask Release");
}

#[tokio::test(start_paused = true)]
async fn after_some_hand_overs_others_have_their_turn() {
    let queues = held();
    for ticket in 1..=2 {
        join(&queues, ticket + 1);
        assert_eq!(next(&queues), Some(ticket));
        queues.heard_of_listeners(b"k", Some(1));
        queues.leave(b"k", ticket, Departure::Granted(TTL));
    }
    assert_eq!(next(&queues), None, "two in a row");
    assert_eq!(turn(&queues, 3), "wait");
    queues.heard_of_listeners(b"k", Some(1));
    assert_eq!(turn(&queues, 3), "ask Release", "there are no others");
    queues.leave(b"k", 3, Departure::Granted(TTL));
    join(&queues, 4);
    assert_eq!(turn(&queues, 4), "ask");
    queues.refused(b"k", 4, &HELD);
    assert_eq!(next(&queues), Some(4));
    queues.heard_of_listeners(b"k", Some(2));
    queues.leave(b"k", 4, Departure::Granted(TTL));
    join(&queues, 5);
    assert_eq!(turn(&queues, 5), "ask");
    queues.refused(b"k", 5, &HELD);
    assert_eq!(next(&queues), None, "another proxy listens");
    queues.heard_of_listeners(b"k", Some(2));
    assert_eq!(turn(&queues, 5), "wait");
    tokio::time::advance(2 * OTHERS_TURN).await;
    assert_eq!(turn(&queues, 5), "ask Retry", "its turn ends");
}

#[tokio::test(start_paused = true)]
async fn nodes_tell_only_as_long_as_somebody_waits() {
    let queues = queues();
    join(&queues, 1);
    assert_eq!(turn(&queues, 1), "ask");
    assert!(!queues.is_listening(), "it may be granted at once");
    assert!(queues.untold(0).is_empty());
    queues.connected(0);
    queues.refused(b"k", 1, &HELD);
    assert!(queues.is_listening());
    queues.connected(1);
    assert_eq!(queues.untold(1), [b"k"]);
    assert!(queues.is_listening_to(|key| key == b"k") && !queues.is_listening_to(|_| false));
    assert_eq!(queues.wishes(0).take(), HashMap::from([(b"k".to_vec(), true)]));
    queues.leave(b"k", 1, Departure::Gone);
    queues.sweep();
    assert!(queues.is_listening(), "whoever was here may come back");
    tokio::time::advance(LINGER).await;
    queues.sweep();
    assert!(!queues.is_listening());
    assert_eq!(queues.wishes(0).take(), HashMap::from([(b"k".to_vec(), false)]));
    assert!(queues.wishes(4).take().is_empty(), "that node is not connected");
    join(&queues, 2);
    queues.leave(b"k", 2, Departure::Granted(TTL));
    assert_eq!(queues.count.load(Ordering::Relaxed), 0, "nobody was told of it");
}

#[tokio::test(start_paused = true)]
async fn who_was_told_in_vain_listens_again_only_for_the_next_waiter() {
    let queues = held();
    assert!(!queues.stop_listening(b"k"), "somebody waits");
    assert!(queues.is_listening() && queues.stop_listening(b"other"));
    queues.leave(b"k", 1, Departure::Gone);
    assert!(queues.stop_listening(b"k"));
    assert!(!queues.is_listening());
    queues.connected(0);
    join(&queues, 2);
    assert_eq!(turn(&queues, 2), "ask");
    queues.refused(b"k", 2, &HELD);
    assert_eq!(queues.wishes(0).take(), HashMap::from([(b"k".to_vec(), true)]));
    tokio::time::advance(POLLING.1).await;
    assert_eq!(turn(&queues, 2), "ask Retry", "nobody would tell yet");
}

#[test]
fn a_pause_that_begins_while_an_earlier_one_is_found_over_is_not_lost() {
    let queues = queues();
    let (over, later) = (Instant::now(), Instant::now() + Duration::from_secs(600));
    let is_done = AtomicBool::new(false);
    let lost = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                queues.paused_until();
            }
        });
        // For a pause to be lost, the other thread must be interrupted at one certain place.
        let lost = (0..ROUNDS).find(|_| {
            queues.pause(Some(over));
            queues.pause(Some(later));
            (0..4).any(|_| queues.paused_until().is_none())
        });
        is_done.store(true, Ordering::Relaxed);
        lost
    });
    assert_eq!(lost, None);
}
