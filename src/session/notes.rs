//! What the data node will answer to each command that is forwarded, noted before it does.

use super::{Session, owed::Entry};
use crate::resp::name::{Name, ReplyMode};

impl Session {
    /// Notes what the data node will answer to a command that is forwarded.
    #[inline]
    pub(super) fn note(&mut self, name: Name, arguments: usize) {
        self.next_only = name == Name::NextOnly;
        if name == Name::Other && self.reply_mode == ReplyMode::On {
            if !self.owed.push(Entry::Plain(1)) {
                self.relay_from_here();
            }
        } else {
            self.note_special(name, arguments);
        }
    }

    fn note_special(&mut self, name: Name, arguments: usize) {
        let mut armed = false;
        if matches!(name, Name::Select | Name::Reset) {
            self.database = None;
        }
        match name {
            Name::Exec | Name::Discard | Name::Reset => {
                armed = self.armed.take().is_some();
                self.blind_multi = false;
                if std::mem::take(&mut self.auth_queued) || name == Name::Reset {
                    self.permissions.forget();
                }
            }
            Name::Auth | Name::Hello => {
                self.permissions.forget();
                self.auth_queued = true;
            }
            _ => {}
        }
        if self.reply_mode != ReplyMode::On {
            return self.note_unanswered(name);
        }
        let entry = match name {
            Name::Blank => return,
            // A second one is not answered. Where it is not yet known to be
            // the second, the tracker finds out.
            Name::Monitor | Name::Sync if self.state.monitor && self.owed.is_empty() => return,
            Name::Replconf => return self.relay_from_here(),
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
            Name::Reset => Entry::Reset,
            Name::Quit => Entry::Quit,
            Name::Monitor => Entry::Monitor,
            Name::Sync => Entry::Sync,
            Name::ClientReply(_) => Entry::Unqueued,
            Name::Listing(listing) => Entry::Listing(listing),
            _ => Entry::Plain(1),
        };
        if !self.owed.push(entry) {
            self.relay_from_here();
        }
    }

    /// Notes a command to which CLIENT REPLY OFF or SKIP allows no reply.
    fn note_unanswered(&mut self, name: Name) {
        let skipped = self.reply_mode == ReplyMode::Skip;
        if skipped {
            self.reply_mode = ReplyMode::On;
        }
        match name {
            Name::Multi => self.blind_multi = true,
            Name::Quit => {
                self.state.quit = true;
                self.start_linger();
            }
            // Shown even while replies are off, and turns them on.
            Name::Reset if !skipped => {
                self.reply_mode = ReplyMode::On;
                if !self.owed.push(Entry::Reset) {
                    self.relay_from_here();
                }
            }
            // Nobody will tell how these ended.
            Name::Reset
            | Name::Subscribe(_)
            | Name::Unsubscribe(_)
            | Name::Hello
            | Name::Monitor
            | Name::Sync
            | Name::Replconf => self.relay_from_here(),
            _ => {}
        }
    }
}
