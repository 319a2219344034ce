//! Finds out which database a guarded write is for: fences live in database 0, whichever database the client has
//! selected.
//!
//! The outcome of a SELECT is not followed, as the command may be queued, skipped or refused. After a SELECT the
//! database counts as unknown, and the next guarded write or MULTI asks CLIENT INFO: at most once for each SELECT.

use super::{
    super::{
        desk::Desk,
        jobs::{Job, Progress},
        session_metrics::GuardedWrite,
    },
    arm::arm_for_nothing,
    refuse::end,
    short,
    subject::{Subject, error_reply},
};
use crate::{
    guard::fences::read_error,
    resp::{encode, expected::Expected, number},
};

/// Asks the data node which database is selected. Earlier questions may still be unanswered.
pub(in crate::session) fn locate(desk: &mut Desk) {
    desk.ask(Expected::Text, |out| encode::command(out, &[b"CLIENT", b"INFO"]));
}

/// Waits for the reply to [`locate`], with which `then` takes the stage on. By then the connection's database is the one
/// that the reply tells, or unknown if it tells none.
pub(in crate::session) fn await_database<S: Job>(
    stage: S,
    then: impl FnOnce(S, &[u8], &mut Desk) -> Progress + Send + 'static,
) -> Progress {
    Progress::await_replies(stage, |stage, reply, desk| {
        desk.conn.database = selected(reply);
        then(stage, reply, desk)
    })
}

/// Asks which database is selected, for a write or MULTI.
pub(super) fn ask(subject: Subject, desk: &mut Desk) -> Progress {
    locate(desk);
    await_database(subject, |subject, reply, desk| match subject {
        subject if desk.conn.database.is_some() => short::begin(subject, desk),
        Subject::Multi(_) => arm_for_nothing(unknown(reply), desk),
        Subject::Write(write) => {
            desk.shared.metrics.guarded(GuardedWrite::Refused);
            end(write, error_reply(&unknown(reply)), desk)
        }
    })
}

/// Returns the database that a reply to CLIENT INFO tells. Returns `None` unless the reply tells it exactly once.
pub(in crate::session) fn selected(reply: &[u8]) -> Option<u64> {
    const FIELD: &[u8] = b" db=";
    if !reply.starts_with(b"$") && !reply.starts_with(b"=") {
        return None;
    }
    let mut places = memchr::memmem::find_iter(reply, FIELD);
    let (Some(at), None) = (places.next(), places.next()) else { return None };
    let rest = &reply[at + FIELD.len()..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match rest.get(digits) {
        Some(b' ' | b'\r' | b'\n') => u64::try_from(number::integer(&rest[..digits])?).ok(),
        // A number that is cut off would name another database.
        _ => None,
    }
}

/// Returns the error that refuses a guarded write, in Redis's words where Redis gave an error.
fn unknown(reply: &[u8]) -> Vec<u8> {
    const WHAT: &[u8] = b" a guarded write behind SELECT needs CLIENT INFO: ";
    let Some(error) = read_error(reply) else {
        return [b"ERR", WHAT, b"the reply does not tell the database"].concat();
    };
    let end = memchr::memchr(b' ', &error).unwrap_or(error.len());
    let (code, text) = error.split_at(end);
    [code, WHAT, text.trim_ascii_start()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_found_if_it_is_there_once() {
        for (reply, expected) in [
            ("$30\r\nid=3 name=db=5 idle=0 db=12 sub=0\r\n", Some(12)),
            ("=20\r\ntxt:id=3 flags=N db=0 sub=0\r\n", Some(0)),
            ("$9\r\nid=3 db=7\n\r\n", Some(7)),
            ("$9\r\nid=3 name=x db=1", None),
            ("$9\r\nid=3 db=1 x=/a db=2 \r\n", None),
            ("$9\r\nid=3 db= sub=0\r\n", None),
            ("$9\r\nid=3 db=-1 sub=0\r\n", None),
            ("$9\r\nid=3 db=99999999999999999999 sub=0\r\n", None),
            ("$9\r\nid=3 name=x\r\n", None),
            ("-ERR x db=1 \r\n", None),
            ("+OK\r\n", None),
        ] {
            assert_eq!(selected(reply.as_bytes()), expected, "{reply}");
        }
    }

    #[test]
    fn an_error_keeps_its_first_word() {
        let told = |reply: &[u8]| String::from_utf8(unknown(reply)).unwrap();
        let needs = "a guarded write behind SELECT needs CLIENT INFO";
        assert_eq!(told(b"-NOPERM no\r\n"), format!("NOPERM {needs}: no"));
        assert_eq!(told(b"-X\r\n"), format!("X {needs}: "));
        assert_eq!(told(b"+OK\r\n"), format!("ERR {needs}: the reply does not tell the database"));
    }
}
