//! Tests of commands behind CLIENT REPLY SKIP: whose reply may come all the same.

use super::*;
use crate::session::pair::adopted_tests::enforced;

/// Has a session with a WAIT behind SKIP, and a command of the proxy's behind that.
fn wait_behind_skip(pair: &mut Pair, wait: &[&str]) {
    pair.commands(&[&["CLIENT", "REPLY", "SKIP"]]);
    pair.reply("+OK\r\n");
    pair.at_data();
    pair.commands(&[wait, &["LOCK", "k", "t", "PX", "1000"]]);
}

/// A reply that was not counted would be taken for the answer to the probe of the LOCK behind it.
#[tokio::test(start_paused = true)]
async fn no_lock_is_asked_for_behind_a_reply_that_may_come_or_not() {
    for wait in [&["WAIT", "1", "500"][..], &["waitaof", "1", "0", "500"]] {
        let mut pair = Pair::new();
        wait_behind_skip(&mut pair, wait);
        assert_eq!(pair.core.tracking, Tracking::Relayed);
        assert!(
            pair.at_data().ends_with(&text(&["LOCK", "k", "t", "PX", "1000"])),
            "it is no command of Redis"
        );
        pair.reply(":1\r\n-ERR unknown command 'LOCK'\r\n");
        assert_eq!(pair.at_client(), ":1\r\n-ERR unknown command 'LOCK'\r\n");
        assert!(pair.core.question().is_none(), "no lock node was asked");
        for mut pair in [enforced(), fronts_tests::at_front()] {
            wait_behind_skip(&mut pair, wait);
            assert_eq!(pair.core.tracking, Tracking::Closing);
            pair.reply(":1\r\n");
            assert!(pair.core.question().is_none(), "no lock node was asked");
        }
    }
    // Any other command behind SKIP has no reply, and WAIT has one where replies are on.
    for (mode, words) in
        [("SKIP", &["BLPOP", "k", "1"][..]), ("SKIP", &["WAITING"]), ("ON", &["WAIT", "1", "5"])]
    {
        let mut pair = enforced();
        pair.commands(&[&["CLIENT", "REPLY", mode]]);
        pair.reply("+OK\r\n");
        pair.commands(&[words]);
        assert_eq!(pair.core.tracking, Tracking::Matched, "{mode} {words:?}");
    }
}
