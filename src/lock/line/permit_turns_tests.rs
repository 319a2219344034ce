//! Lines of families without nodes and without clients.

use std::{
    sync::{Arc, atomic::AtomicUsize},
    task::Wake,
};

use super::*;
use crate::{
    config::LocksConfig,
    key::Token,
    lock::line::queue::{NextHolder, WaiterTurn},
};

const TTL: Duration = Duration::from_secs(10);
const HELD: NotGranted = NotGranted::Held {
    remaining: Some(Duration::from_secs(10)),
    may_be_free: false,
    same_token: SameToken::Unknown,
};

fn queues() -> Queues {
    let config = LocksConfig {
        nodes: (1..=3).map(|n| format!("redis://10.0.0.{n}").parse().unwrap()).collect(),
        max_waiters: 5,
        ..LocksConfig::default()
    };
    Queues::new(&config, Arc::default())
}

fn family() -> Key {
    Key::from("gpu")
}

fn line_up(ticket: u64) -> LineUp {
    LineUp { token: Token::from(&format!("t{ticket}")), ttl: TTL, shared: false, card: None }
}

/// Has a client join that asks for the last of `n` locks first.
fn join(queues: &Queues, ticket: u64, n: usize) {
    let wanted = FamilyLineUp { family: family(), n, start: n - 1, wants: line_up(ticket) };
    queues.join_family(wanted, ticket).unwrap();
}

/// Returns the client's turn: `ask` with the lock, `look` with the locks, `take`, or `wait`.
fn turn(queues: &Queues, ticket: u64) -> String {
    match queues.permit_turn(&family(), ticket, Waker::noop()) {
        PermitTurn::Ask(at, None) => format!("ask {at}"),
        PermitTurn::Ask(at, Some(reason)) => format!("ask {at} {reason:?}"),
        PermitTurn::Take(at, _) => format!("take {at}"),
        PermitTurn::Look(all) => format!("look {all:?}"),
        PermitTurn::Wait(_) => "wait".into(),
    }
}

/// Releases a lock. Returns the ticket of the next holder.
fn release(queues: &Queues, key: &[u8]) -> Option<u64> {
    match queues.next(key) {
        NextHolder::HandTo { ticket, .. } => Some(ticket),
        nobody => {
            queues.released(key, &nobody);
            None
        }
    }
}

/// Makes a line of clients with these tickets that know all `n` locks to be held.
fn held(n: usize, tickets: &[u64]) -> Queues {
    let queues = queues();
    tickets.iter().for_each(|ticket| join(&queues, *ticket, n));
    let first = tickets[0];
    queues.looked(&family(), first, look(&queues, first, n).into_iter());
    assert_eq!(turn(&queues, first), "wait");
    queues
}

/// Has the first client learn of all locks: it asks for one, and looks at the others.
fn look(queues: &Queues, first: u64, n: usize) -> Vec<(usize, LockSeen)> {
    assert_eq!(turn(queues, first), format!("ask {}", n - 1));
    queues.permit_refused(&family(), first, n - 1, &HELD);
    if n == 1 {
        return Vec::new();
    }
    match n {
        2 => {
            assert_eq!(turn(queues, first), "ask 0");
            queues.permit_refused(&family(), first, 0, &HELD);
            Vec::new()
        }
        _ => {
            let others: Vec<usize> = (0..n - 1).collect();
            assert_eq!(turn(queues, first), format!("look {others:?}"));
            others.into_iter().map(|at| (at, LockSeen::Held(Some(TTL)))).collect()
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_asks_for_one_lock_and_then_looks_at_the_others() {
    let queues = queues();
    join(&queues, 1, 4);
    let others = look(&queues, 1, 4);
    assert_eq!(turn(&queues, 1), "wait", "it looks");
    let said =
        others.into_iter().map(|(at, held)| (at, if at == 2 { LockSeen::Free } else { held }));
    queues.looked(&family(), 1, said);
    assert_eq!(turn(&queues, 1), "ask 2 Expiry");
    queues.leave_family(&family(), 1, Some((2, TTL)));
    assert_eq!(queues.all_waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn clients_ask_for_different_locks_side_by_side() {
    let queues = queues();
    (1..=3).for_each(|ticket| join(&queues, ticket, 2));
    assert_eq!([1, 2, 3].map(|ticket| turn(&queues, ticket)), ["ask 1", "ask 0", "wait"]);
    queues.leave_family(&family(), 2, Some((0, TTL)));
    assert_eq!(turn(&queues, 3), "wait", "one is asked for, and the other one was granted");
    queues.leave_family(&family(), 1, None);
    assert_eq!(turn(&queues, 3), "ask 1 Retry", "it was not granted");
}

#[tokio::test(start_paused = true)]
async fn a_lock_goes_to_who_came_first_by_its_name_or_by_its_family() {
    for by_name_first in [true, false] {
        let queues = if by_name_first { queues() } else { held(3, &[1]) };
        let name = Key::from("gpu#1");
        queues.join(&name, line_up(2), 2).unwrap();
        if by_name_first {
            assert!(matches!(queues.turn(&name, 2, Waker::noop()), WaiterTurn::Ask(None)));
            queues.refused(&name, 2, &HELD);
            join(&queues, 3, 3);
            assert_eq!(turn(&queues, 3), "ask 2");
            queues.permit_refused(&family(), 3, 2, &HELD);
            assert_eq!(turn(&queues, 3), "ask 0", "the other one is its turn who came before");
            queues.permit_refused(&family(), 3, 0, &HELD);
        } else {
            join(&queues, 3, 3);
        }
        let order = if by_name_first { [2, 3] } else { [1, 2] };
        assert_eq!(release(&queues, b"gpu#1"), Some(order[0]), "{by_name_first}");
        match by_name_first {
            true => queues.leave(&name, 2, Departure::Granted(TTL)),
            false => queues.leave_family(&family(), 1, Some((1, TTL))),
        }
        assert_eq!(release(&queues, b"gpu#1"), Some(order[1]), "{by_name_first}");
        assert_eq!(release(&queues, b"gpu#7"), None, "nobody wants it");
    }
}

#[tokio::test(start_paused = true)]
async fn several_locks_that_are_released_at_once_go_to_as_many_clients() {
    let queues = held(3, &[1, 2, 3]);
    assert_eq!(release(&queues, b"gpu#0"), Some(1));
    assert_eq!(release(&queues, b"gpu#2"), Some(2), "the first one gets another");
    assert_eq!([1, 2].map(|ticket| turn(&queues, ticket)), ["wait", "wait"]);
    // A hand-over that fails leaves the client its place.
    queues.permit_refused(&family(), 1, 0, &HELD);
    assert_eq!(release(&queues, b"gpu#1"), Some(1));
    queues.leave_family(&family(), 1, Some((1, TTL)));
    queues.leave_family(&family(), 2, Some((2, TTL)));
    assert_eq!(release(&queues, b"gpu#1"), Some(3));
    queues.leave_family(&family(), 3, Some((1, TTL)));
    assert_eq!(release(&queues, b"gpu#1"), None);
}

#[tokio::test(start_paused = true)]
async fn who_leaves_while_a_lock_is_handed_over_leaves_everything_open() {
    let queues = held(1, &[1, 2]);
    assert_eq!(release(&queues, b"gpu#0"), Some(1));
    queues.leave_family(&family(), 1, None);
    assert_eq!(turn(&queues, 2), "ask 0 Retry");
    queues.leave_family(&family(), 2, None);
    assert_eq!(release(&queues, b"gpu#0"), None);
}

#[tokio::test(start_paused = true)]
async fn who_wants_one_of_more_locks_asks_for_those_that_others_do_not_want() {
    let queues = held(1, &[1]);
    join(&queues, 2, 3);
    assert_eq!(turn(&queues, 2), "ask 2");
    queues.permit_refused(&family(), 2, 2, &HELD);
    assert_eq!(turn(&queues, 2), "ask 1", "and not for the first one's");
    queues.permit_refused(&family(), 2, 1, &HELD);
    assert_eq!(turn(&queues, 2), "wait");
    assert_eq!(release(&queues, b"gpu#2"), Some(2));
    assert_eq!(release(&queues, b"gpu#0"), Some(1));
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_the_first_to_want_a_lock_is_woken_behind_one_that_does_not() {
    let queues = held(4, &[1]);
    join(&queues, 2, 2);
    join(&queues, 3, 4);
    let woken: [Arc<Woken>; 2] = Default::default();
    for (ticket, woken) in (2..).zip(&woken) {
        let turn = queues.permit_turn(&family(), ticket, &Waker::from(woken.clone()));
        assert!(matches!(turn, PermitTurn::Wait(None)), "all are the first one's");
    }
    queues.leave_family(&family(), 1, None);
    assert!(woken.iter().all(|woken| woken.0.load(Ordering::Relaxed) == 1));
    let turn = queues.permit_turn(&family(), 3, Waker::noop());
    assert!(matches!(turn, PermitTurn::Wait(Some(_))), "until the locks of its own may be free");
}

#[tokio::test(start_paused = true)]
async fn a_release_elsewhere_and_the_end_of_a_ttl_are_followed() {
    let queues = held(3, &[1]);
    for at in 0..3 {
        for node in 0..3 {
            queues.subscribed(node, format!("gpu#{at}").as_bytes());
        }
    }
    // The locks may have been released before the subscriptions.
    assert_eq!(turn(&queues, 1), "look [2, 0, 1]");
    let all = || (0..3).map(|at| (at, LockSeen::Held(Some(TTL))));
    queues.looked(&family(), 1, all());
    assert_eq!(turn(&queues, 1), "wait");
    (0..2).for_each(|node| queues.heard_of_release(node, b"gpu#1"));
    assert_eq!(turn(&queues, 1), "ask 1 Message");
    queues.permit_refused(&family(), 1, 1, &HELD);
    tokio::time::advance(TTL + Duration::from_millis(1)).await;
    assert_eq!(turn(&queues, 1), "look [2, 0, 1]", "they may have been renewed");
}

#[tokio::test(start_paused = true)]
async fn who_came_first_learns_what_a_later_one_was_told() {
    let queues = held(2, &[1]);
    let name = Key::from("gpu#0");
    queues.join(&name, line_up(2), 2).unwrap();
    assert_eq!(release(&queues, b"gpu#1"), Some(1));
    (0..2).for_each(|node| queues.heard_of_release(node, &name));
    assert!(matches!(queues.turn(&name, 2, Waker::noop()), WaiterTurn::Ask(_)));
    queues.permit_refused(&family(), 1, 1, &HELD);
    let woken = Arc::new(Woken::default());
    let waits = queues.permit_turn(&family(), 1, &Waker::from(woken.clone()));
    assert!(matches!(waits, PermitTurn::Wait(_)));
    let soon = NotGranted::Held {
        remaining: Some(Duration::from_millis(3)),
        may_be_free: false,
        same_token: SameToken::Unknown,
    };
    queues.refused(&name, 2, &soon);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1, "it asks once that time is over");
    tokio::time::advance(Duration::from_millis(5)).await;
    assert_eq!(turn(&queues, 1), "ask 0 Expiry");
}

/// A client takes its number before its place, so another one may have asked in between.
#[tokio::test(start_paused = true)]
async fn who_came_first_by_name_goes_on_once_a_later_request_is_refused() {
    let queues = queues();
    join(&queues, 5, 1);
    assert_eq!(turn(&queues, 5), "ask 0");
    let name = Key::from("gpu#0");
    queues.join(&name, line_up(2), 2).unwrap();
    let woken = Arc::new(Woken::default());
    let waits = queues.turn(&name, 2, &Waker::from(woken.clone()));
    assert!(matches!(waits, WaiterTurn::Wait(None)), "another one asks");
    queues.permit_refused(&family(), 5, 0, &HELD);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1, "it times the next request");
    assert!(matches!(queues.turn(&name, 2, Waker::noop()), WaiterTurn::Wait(Some(_))));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_line_that_has_ended() {
    let queues = held(4, &[1, 2]);
    assert_eq!((queues.all_waiting(), queues.lines().len()), (2, 1));
    let line = queues.line_of(b"gpu#*", Instant::now()).unwrap();
    assert_eq!((&*line.key, line.waiters, line.is_held), (&b"gpu#*"[..], 2, false));
    assert_eq!(queues.line(b"gpu#*").len(), 2);
    assert!(queues.is_listening_to(|key| key == b"gpu#3"));
    queues.leave_family(&family(), 1, None);
    queues.leave_family(&family(), 2, None);
    tokio::time::advance(Duration::from_secs(2)).await;
    queues.sweep();
    let lines = queues.lines.lock();
    assert_eq!((lines.queues.len(), lines.families.names), (0, 0));
    assert!(lines.families.lines.is_empty());
}

#[tokio::test(start_paused = true)]
async fn lines_and_the_locks_of_all_lines_are_bounded() {
    let queues = queues();
    (1..=5).for_each(|ticket| join(&queues, ticket, 2));
    let wanted = |family: Key, n: usize| FamilyLineUp { family, n, start: 0, wants: line_up(9) };
    let full = queues.join_family(wanted(family(), 2), 9);
    assert_eq!(full, Err(NotGranted::QueueFull { limit: 5, permits: false }));
    for n in 0..MOST_NAMES / 256 - 1 {
        queues.join_family(wanted(Key::from(&n.to_string()), 256), 10 + n as u64).unwrap();
    }
    let full = queues.join_family(wanted(Key::from("last"), 256), 9);
    assert_eq!(full, Err(NotGranted::QueueFull { limit: MOST_NAMES, permits: true }));
    queues.join_family(wanted(Key::from("last"), 254), 9).unwrap();
}
