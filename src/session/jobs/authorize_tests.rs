//! Tests of which replies of the data node are a permission, and for how long one counts.

use std::time::Duration;

use super::*;

#[test]
fn only_what_redis_says_behind_its_look_at_who_asks_is_a_permission() {
    let read = |asked, reply: &str| read(asked, format!("{reply}\r\n").as_bytes());
    for granted in
        ["-ERR syntax error", "-READONLY x", "-OOM x", "-BUSY x", "-MOVED 1 a:1", "+OK", "$-1"]
    {
        assert_eq!(read(Probe::Lock, granted), Permission::Granted, "{granted}");
    }
    for (asked, granted) in [
        (Probe::Operator, "$0"),
        (Probe::Operator, "=4"),
        (Probe::Operator, "-LOADING x"),
        (Probe::Commands, ":240"),
        (Probe::Adopted(Expected::Text), "$-1"),
        (Probe::Adopted(Expected::Text), "_"),
        (Probe::Adopted(Expected::Set), "+OK"),
        (Probe::Adopted(Expected::Type), "+string"),
        (Probe::Adopted(Expected::Number), ":-2"),
        (Probe::Adopted(Expected::Text), "$1"),
        (Probe::Adopted(Expected::Number), "-WRONGTYPE x"),
    ] {
        assert_eq!(read(asked, granted), Permission::Granted, "{granted}");
    }
    for refused in [
        "NOAUTH Authentication required.",
        "ERR unknown command 'SET', with args beginning with: 'lock:a'",
        "ERR max number of clients reached",
        "ERR Protocol error: unauthenticated bulk length",
        "DENIED Redis is running in protected mode",
        "ERR syntax errors are ours",
        "OOMPH",
        "",
    ] {
        for asked in [Probe::Lock, Probe::Operator, Probe::Commands] {
            let said = read(asked, &format!("-{refused}"));
            assert_eq!(said, Permission::Refused(refused.into()));
        }
    }
    for (asked, reply) in [
        (Probe::Lock, ":1"),
        (Probe::Lock, "+QUEUED"),
        (Probe::Operator, "+OK"),
        (Probe::Operator, ":0"),
        (Probe::Commands, "$-1"),
        (Probe::Adopted(Expected::Text), "*3"),
        (Probe::Adopted(Expected::Set), "+QUEUED"),
        (Probe::Adopted(Expected::Type), "+1699999999.123456 [0 127.0.0.1:1]"),
        (Probe::Adopted(Expected::Number), ">3"),
        (Probe::Lock, ""),
    ] {
        assert_eq!(read(asked, reply), Permission::Refused(NO_ANSWER.into()), "{reply}");
    }
    assert_eq!(
        read(Probe::Lock, "-NOPERM this user has no permissions to run the 'set' command"),
        Permission::Refused("NOPERM this user has no permissions to run the 'lock' command".into())
    );
}

#[test]
fn a_permission_is_forgotten_in_time_and_when_there_are_many() {
    let (mut permissions, now) = (Permissions::default(), Instant::now());
    let until = now + Duration::from_secs(3);
    let (a, b) = (Key::from("a"), Key::from("b"));
    permissions.remember(&a, until);
    assert!(permissions.remembered(&a, now + Duration::from_millis(2999), false));
    assert!(!permissions.remembered(&a, now + Duration::from_secs(3), false));
    assert!(!permissions.remembered(&b, now, false));
    let much_later = now + Duration::from_secs(3600);
    assert!(permissions.remembered(&a, much_later, true), "the data node answers nobody");
    assert!(!permissions.remembered(&b, much_later, true));
    for key in 0..MAX_KEYS {
        permissions.remember(&Key::from(&key.to_string()), until);
    }
    assert!(permissions.granted.len() <= MAX_KEYS);
}
