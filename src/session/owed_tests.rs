//! The reply tracker against the replies that Redis was seen to give.

use super::*;
use crate::resp::reply::{NextReply, ReplyScanner};

/// Plays replies. Returns whether all that is owed was paid, and the last verdict.
fn play(entries: &[Entry], state: &mut State, replies: &str) -> (bool, Verdict) {
    let mut owed = Owed::default();
    for entry in entries {
        assert!(owed.push(*entry));
    }
    let (mut scanner, mut pos, mut last) = (ReplyScanner::default(), 0, Verdict::Pass);
    while let NextReply::Frame(frame) = scanner.next(replies.as_bytes(), &mut pos) {
        last = owed.frame(frame, state);
        if last == Verdict::Lost {
            break;
        }
    }
    (owed.is_empty(), last)
}

const PAID: (bool, Verdict) = (true, Verdict::Pass);
const OWING: (bool, Verdict) = (false, Verdict::Pass);

fn array(words: &[&str], count: i64) -> String {
    let words: String = words.iter().map(|w| format!("${}\r\n{w}\r\n", w.len())).collect();
    format!("*3\r\n{words}:{count}\r\n")
}

fn message(channel: &str, text: &str) -> String {
    format!(
        "*3\r\n$7\r\nmessage\r\n${}\r\n{channel}\r\n${}\r\n{text}\r\n",
        channel.len(),
        text.len()
    )
}

#[test]
fn what_turns_out_to_come_before_is_paid_before() {
    let (mut owed, state) = (Owed::default(), State::default());
    assert!(owed.push(Entry::Guarded));
    owed.push_before(0);
    assert_eq!(owed.next_special(), Some(Entry::Guarded));
    owed.push_before(2);
    assert_eq!(owed.next_special(), None);
    assert_eq!(owed.plain_run(&state), 2);
    owed.plain(2, &state);
    assert_eq!(owed.next_special(), Some(Entry::Guarded));
}

#[test]
fn pushes_are_never_counted() {
    let push = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n";
    let mut state = State { resp3: true, ..State::default() };
    assert_eq!(play(&[Entry::Plain(2)], &mut state, &format!("{push}:1\r\n{push}")), OWING);
    assert_eq!(play(&[Entry::Plain(2)], &mut state, &format!(":1\r\n{push}:2\r\n")), PAID);
}

#[test]
fn a_transaction_is_followed_from_its_replies() {
    let mut state = State::default();
    assert_eq!(play(&[Entry::Multi], &mut state, "+OK\r\n"), PAID);
    assert!(state.multi);
    assert_eq!(play(&[Entry::Multi], &mut state, "-ERR MULTI calls can not be nested\r\n"), PAID);
    assert_eq!(play(&[Entry::Discard], &mut state, "-ERR wrong number\r\n"), PAID);
    assert!(state.multi);
    assert_eq!(play(&[Entry::Exec], &mut state, "-EXECABORT no\r\n"), PAID);
    assert!(!state.multi);
}

#[test]
fn a_subscriber_is_one_until_its_last_channel_is_gone() {
    let mut state = State::default();
    let confirmations = array(&["subscribe", "a"], 1)
        + &message("a", "x")
        + &array(&["subscribe", "b"], 2)
        + &array(&["psubscribe", "p"], 3);
    let entries = [Entry::Subscribe(Channels::Plain, 2), Entry::Subscribe(Channels::Pattern, 1)];
    assert_eq!(play(&entries, &mut state, &confirmations), PAID);
    assert!(state.is_resp2_subscriber());
    let end = array(&["unsubscribe", "a"], 2) + &array(&["unsubscribe", "b"], 1);
    let entries = [Entry::Unsubscribe(Channels::Plain, None), Entry::Plain(1)];
    assert_eq!(play(&entries, &mut state, &end), OWING);
    assert_eq!(play(&entries[1..], &mut state, "-ERR Can't execute 'get'\r\n"), PAID);
    let end = array(&["punsubscribe", "p"], 0);
    assert_eq!(play(&[Entry::Unsubscribe(Channels::Pattern, None)], &mut state, &end), PAID);
    assert!(state.is_plain());
    // Now a reply that looks like a message is a reply.
    assert_eq!(play(&[Entry::Plain(1)], &mut state, &message("a", "x")), PAID);
}

#[test]
fn unsubscribing_from_nothing_is_confirmed_once() {
    let none = "*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n";
    let entry = Entry::Unsubscribe(Channels::Plain, None);
    assert_eq!(play(&[entry], &mut State::default(), none), PAID);
}

#[test]
fn an_error_answers_a_whole_subscribe() {
    let entry = Entry::Subscribe(Channels::Plain, 3);
    assert_eq!(play(&[entry], &mut State::default(), "-NOPERM no\r\n"), PAID);
}

#[test]
fn resp3_confirmations_are_pushes() {
    let mut state = State { resp3: true, ..State::default() };
    let push = array(&["subscribe", "a"], 1).replacen('*', ">", 1);
    let note = message("a", "x").replacen('*', ">", 1);
    let entries = [Entry::Subscribe(Channels::Plain, 1), Entry::Plain(1)];
    assert_eq!(play(&entries, &mut state, &format!("{note}{push}{note}")), OWING);
    assert_eq!(play(&entries, &mut state, &format!("{push}{note}:1\r\n")), PAID);
}

#[test]
fn quit_ends_the_connection_only_where_it_is_obeyed() {
    for (reply, ends) in [("-ERR unknown command", false), ("+QUEUED", false), ("+OK", true)] {
        let mut state = State::default();
        assert_eq!(play(&[Entry::Quit], &mut state, &format!("{reply}\r\n")), PAID);
        assert_eq!(state.quit, ends, "{reply}");
    }
}

#[test]
fn hello_and_reset_change_the_protocol_by_their_replies() {
    let mut state = State::default();
    let accepted = (true, Verdict::Named);
    assert_eq!(play(&[Entry::Hello], &mut state, "%1\r\n+a\r\n:1\r\n"), accepted);
    assert!(state.resp3);
    assert_eq!(play(&[Entry::Hello], &mut state, "-NOPROTO no\r\n"), PAID);
    assert!(state.resp3);
    assert_eq!(play(&[Entry::Hello], &mut state, "*2\r\n+a\r\n:1\r\n"), accepted);
    assert!(!state.resp3);
    state.multi = true;
    assert_eq!(play(&[Entry::Reset], &mut state, "+RESET\r\n"), (true, Verdict::Reset));
    assert_eq!(state, State::default());
}

#[test]
fn a_name_counts_once_its_own_command_is_accepted() {
    let mut owed = Owed::default();
    let names = [Some("a"), None, Some("b c"), Some("d")];
    let entries = [Entry::SetName, Entry::Hello, Entry::SetName, Entry::SetName];
    for (name, entry) in names.into_iter().zip(entries) {
        owed.expect_name(name.map(|name| name.as_bytes().into()));
        assert!(owed.push(entry));
    }
    let mut state = State::default();
    let mut told = |reply: &str| {
        let (mut scanner, mut pos) = (ReplyScanner::default(), 0);
        let NextReply::Frame(frame) = scanner.next(reply.as_bytes(), &mut pos) else { return None };
        let verdict = owed.frame(frame, &mut state);
        if verdict == Verdict::Named { owed.next_name() } else { None }
    };
    assert_eq!(told("+OK\r\n").as_deref(), Some(&b"a"[..]));
    assert_eq!(told("*2\r\n+a\r\n:1\r\n"), None, "a HELLO without a name");
    assert_eq!(told("-ERR Client names cannot contain spaces\r\n"), None);
    assert_eq!(told("+OK\r\n").as_deref(), Some(&b"d"[..]));
    for _ in 0..2 * MAX_NAMES {
        owed.expect_name(Some((*b"n").into()));
    }
    assert_eq!(owed.names.iter().flat_map(|names| names.iter()).flatten().count(), MAX_NAMES);
}

#[test]
fn monitor_lines_are_known_by_their_shape_and_a_second_monitor_is_silent() {
    let mut state = State::default();
    let line = "+1699999999.123456 [0 127.0.0.1:1] \"get\" \"a\"\r\n";
    let entries = [Entry::Monitor, Entry::Monitor, Entry::Sync, Entry::Plain(2)];
    let replies = format!("+OK\r\n{line}$1\r\na\r\n{line}");
    assert_eq!(play(&entries, &mut state, &replies), OWING);
    assert_eq!(play(&entries[3..], &mut state, "+PONG\r\n+1.5 x\r\n"), PAID);
    assert!(state.monitor);
}

#[test]
fn what_cannot_be_followed_is_given_up() {
    let mut state = State { multi: true, ..State::default() };
    for entry in [Entry::Subscribe(Channels::Plain, 1), Entry::Hello, Entry::Unqueued] {
        assert_eq!(play(&[entry], &mut state, "+QUEUED\r\n").1, Verdict::Lost, "{entry:?}");
    }
    assert_eq!(play(&[], &mut State::default(), "-ERR max clients\r\n").1, Verdict::Lost);
    let mut owed = Owed::default();
    for _ in 0..MAX_ENTRIES / 2 {
        assert!(owed.push(Entry::Multi) && owed.push(Entry::Plain(1)));
    }
    assert!(owed.push(Entry::Plain(1)) && !owed.push(Entry::Exec));
}
