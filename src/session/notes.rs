//! Notes which reply the data node will owe for each command, as the command is forwarded.

use super::{desk::Desk, owed::Entry, rare::Rare};
use crate::resp::name::{Name, ReplyMode};

/// Result of noting a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Noted {
    /// The reply will be recognised.
    Followed,
    /// Replies can no longer be matched to commands.
    Lost,
    /// A QUIT without an answer: the connection ends, or should.
    Quit,
}

impl Desk {
    /// Notes the reply that the data node will owe for a command that is forwarded.
    #[inline]
    pub(super) fn note(&mut self, name: Name, arguments: usize) -> Noted {
        self.conn.next_only = matches!(name, Name::NextOnly | Name::Asking);
        if name == Name::Other && self.conn.reply_mode == ReplyMode::On {
            self.owe(Entry::Plain(1))
        } else {
            self.note_special(name, arguments)
        }
    }

    #[inline]
    pub(super) fn owe(&mut self, entry: Entry) -> Noted {
        if self.owed.push(entry) { Noted::Followed } else { Noted::Lost }
    }

    #[inline(never)]
    fn note_special(&mut self, name: Name, arguments: usize) -> Noted {
        let mut armed = false;
        self.conn.asking = name == Name::Asking;
        if matches!(name, Name::Select | Name::Reset) {
            self.conn.database = None;
        }
        if matches!(name, Name::Unwatch | Name::Reset) {
            self.conn.blind_watch = false;
            self.conn.lost_watch = false;
        }
        match name {
            Name::Exec | Name::Discard | Name::Reset => {
                armed = self.conn.armed.is_some();
                self.conn.transaction_ended();
                if name == Name::Reset {
                    self.conn.permissions = Rare::default();
                }
            }
            Name::Multi if self.shared.adoption.as_ref().is_some_and(|all| all.enforces()) => {
                self.owed.look_into_transactions();
            }
            Name::Sync | Name::Replconf => self.conn.is_replica = true,
            Name::Auth | Name::Hello => {
                self.conn.permissions = Rare::default();
                self.conn.auth_queued = true;
            }
            _ => {}
        }
        if self.conn.reply_mode != ReplyMode::On {
            return self.note_unanswered(name);
        }
        let entry = match name {
            Name::Blank => return Noted::Followed,
            // A second MONITOR has no answer. If it is not yet known to be the second, the tracker
            // finds out.
            Name::Monitor | Name::Sync if self.conn.state.monitor && self.owed.is_empty() => {
                return Noted::Followed;
            }
            Name::Replconf => return Noted::Lost,
            Name::Multi => Entry::Multi,
            Name::Exec if armed => Entry::ArmedExec,
            Name::Exec => Entry::Exec,
            Name::Watch => Entry::Watch,
            Name::Unwatch => Entry::Unwatch,
            Name::Discard => Entry::Discard,
            Name::Subscribe(kind) if arguments > 1 => Entry::Subscribe(kind, arguments - 1),
            Name::Unsubscribe(kind) => {
                Entry::Unsubscribe(kind, (arguments > 1).then(|| arguments - 1))
            }
            Name::Hello => Entry::Hello,
            Name::SetName => Entry::SetName,
            Name::Reset => Entry::Reset,
            Name::Quit => Entry::Quit,
            Name::Monitor => Entry::Monitor,
            Name::Sync => Entry::Sync,
            Name::ClientReply(_) => Entry::Unqueued,
            Name::Listing(listing) => Entry::Listing(listing),
            Name::Topology(kind) if self.view.is_some() => Entry::Topology(kind),
            _ => Entry::Plain(1),
        };
        self.owe(entry)
    }

    /// Notes a command whose reply CLIENT REPLY OFF or SKIP suppresses.
    fn note_unanswered(&mut self, name: Name) -> Noted {
        let skipped = self.conn.reply_mode == ReplyMode::Skip;
        if skipped {
            self.conn.reply_mode = ReplyMode::On;
        }
        match name {
            Name::Multi => self.conn.blind_multi = true,
            Name::Watch => self.conn.blind_watch = true,
            Name::Quit => {
                self.conn.state.quit = true;
                return Noted::Quit;
            }
            // Redis answers RESET even while replies are off, and turns them on.
            Name::Reset if !skipped => {
                self.conn.reply_mode = ReplyMode::On;
                return self.owe(Entry::Reset);
            }
            // No reply tells how these ended.
            Name::Reset
            | Name::Subscribe(_)
            | Name::Unsubscribe(_)
            | Name::Hello
            | Name::Monitor
            | Name::Sync
            | Name::Replconf => return Noted::Lost,
            _ => {}
        }
        Noted::Followed
    }
}
