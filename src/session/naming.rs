//! The name that a client gives itself: taken from CLIENT SETNAME and HELLO as they pass, and put on the client's
//! card once the data node has accepted it. A name that is given inside MULTI, or with replies off, is not taken.

use super::core::Core;
use crate::resp::{
    name::{ReplyMode, given_name},
    split::{Split, split},
};

/// Most words and bytes of a command that may give a name. One with more passes, and gives none.
const MOST_WORDS: usize = 16;
const MOST_BYTES: usize = 4096;

impl Core {
    /// Looks at a command that may give the client a name and is about to be forwarded. Returns `false` if more of it
    /// must arrive first.
    #[cold]
    pub(super) fn take_name(&mut self, bytes: &[u8]) -> bool {
        if self.desk.conn.reply_mode != ReplyMode::On {
            return true;
        }
        let given = match split(bytes, MOST_WORDS, MOST_BYTES) {
            Split::Incomplete if bytes.len() < MOST_BYTES && !self.client_done => return false,
            Split::Incomplete | Split::TooLong => None,
            Split::Whole { words, .. } => given_name(&words).map(Box::from),
        };
        self.desk.owed.expect_name(given);
        true
    }
}
