//! The replies that one session is owed over links, and those that have come.

use std::{
    future::poll_fn,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll, Waker},
};

use tokio::io::ReadBuf;

use crate::{net::ByteQueue, sync::Mutex};

/// Memory kept once all replies are taken, in bytes. An idle client keeps no more.
const KEEP: usize = 512;

/// Bytes held for a client beyond which the link that they came over is that client's own.
pub(super) const SHARED_HELD: usize = 64 * 1024;

/// Most bytes held for all clients of which each has more than [`SHARED_HELD`].
const MOST_HELD_OF_ALL: usize = 128 << 20;
/// How many they are.
static HELD_OF_ALL: AtomicUsize = AtomicUsize::new(0);

/// The mean length in bytes from which replies are large: read and written once more, they cost more than sharing
/// saves.
const LARGE: usize = 16 * 1024;
/// How often they come before a client gets a connection of its own for them.
const MANY: u32 = 4;

/// How many commands of a client are put on a link at once, until it is seen how fast they are carried out; and how many
/// at most.
pub(super) const FEW: u32 = 64;
pub(super) const MANY_AT_ONCE: u32 = 1024;
/// Where replies are long, no more than [`FEW`] are awaited at once, or those that have about so many bytes: others
/// behind wait for them, also if the client does not read.
const MUCH_AT_ONCE: usize = 1 << 20;

/// The replies for one session. Links fill it, the session empties it.
#[derive(Debug, Default)]
pub(super) struct Mailbox(Mutex<Letters>);

#[derive(Debug)]
struct Letters {
    /// What the session has not taken.
    held: ByteQueue,
    /// All bytes that the session has ever taken, so that a link sees whether its client reads.
    taken_in_all: u64,
    /// Replies that are still to come.
    owed: u32,
    /// How many of them there may be: beyond that commands wait in the session, so that others' come between them.
    at_once: u32,
    /// How often large replies, or parts of them, have come.
    large: u32,
    /// The link broke with replies owed: the session ends behind what has come.
    ended: bool,
    /// The client took its replies too slowly for those behind it: the session ends.
    is_given_up: bool,
    /// The client is gone: what comes for it is dropped.
    left: bool,
    /// The client is gone, but its session waits until all that it sent is carried out.
    is_awaited: bool,
    /// A command waits for all that is owed, so that the session takes it though the client does not read.
    is_hurried: bool,
    /// A link wakes the session once there is room for more commands.
    is_waiting: bool,
    waker: Option<Waker>,
}

impl Default for Letters {
    fn default() -> Letters {
        Letters {
            held: ByteQueue::default(),
            taken_in_all: 0,
            owed: 0,
            at_once: FEW,
            large: 0,
            ended: false,
            is_given_up: false,
            left: false,
            is_awaited: false,
            is_hurried: false,
            is_waiting: false,
            waker: None,
        }
    }
}

impl Letters {
    /// Counts what is held now, where `before` was.
    fn count(&self, before: usize) {
        let counted = |held| if held > SHARED_HELD { held } else { 0 };
        let (before, now) = (counted(before), counted(self.held.len()));
        if now != before {
            HELD_OF_ALL.fetch_add(now, Ordering::Relaxed);
            HELD_OF_ALL.fetch_sub(before, Ordering::Relaxed);
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let before = self.held.len();
        self.held.put(bytes);
        self.count(before);
    }

    /// Drops what has come, and what will come.
    fn drop_all(&mut self) {
        let before = self.held.len();
        (self.left, self.held) = (true, ByteQueue::default());
        self.count(before);
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The result of taking replies.
pub(super) enum TakenReplies {
    /// Some bytes.
    Some,
    /// Nothing has come. The task is woken once something does.
    Nothing,
    /// Nothing will come any more.
    Ended,
}

impl Mailbox {
    /// Notes that so many more replies are owed.
    pub(super) fn owe(&self, count: u32) {
        self.0.lock().owed += count;
    }

    /// Whether the client asks for large values.
    pub(super) fn gets_large_replies(&self) -> bool {
        self.0.lock().large >= MANY
    }

    /// How many more commands may be put on a link now. If none may, the session is woken once a reply comes.
    pub(super) fn room(&self) -> u32 {
        let letters = self.0.lock();
        letters.at_once.saturating_sub(letters.owed)
    }

    /// Takes in the proxy's own reply.
    pub(super) fn tell(&self, reply: &[u8]) {
        self.deliver(reply, 0, MANY_AT_ONCE);
    }

    /// Takes in bytes with the ends of `answered` replies. `most`: how many commands of the client there may be on the
    /// link at once, as far as is seen by now. Returns how many bytes the session has not taken.
    pub(super) fn deliver(&self, bytes: &[u8], answered: u32, most: u32) -> usize {
        let letters = &mut *self.0.lock();
        letters.owed = letters.owed.saturating_sub(answered);
        let many = MUCH_AT_ONCE / (bytes.len() / answered.max(1) as usize).max(1);
        let most = most.min(u32::try_from(many).unwrap_or(u32::MAX)).max(FEW);
        letters.at_once = letters.at_once.saturating_add(answered).min(most);
        letters.is_hurried &= letters.owed > 0;
        if bytes.len() > LARGE * answered.max(1) as usize {
            letters.large = letters.large.saturating_add(1);
        }
        if !letters.left {
            letters.put(bytes);
        }
        letters.wake();
        letters.held.len()
    }

    /// Ends the session behind what has come, without a word.
    pub(super) fn end(&self) {
        self.end_with(b"");
    }

    /// Ends the session behind what has come and an error in place of the next reply. Where it has ended already, that
    /// reply is lost, and the error would stand for another command.
    pub(super) fn end_with(&self, error: &[u8]) {
        let letters = &mut *self.0.lock();
        if !letters.ended && !letters.left {
            letters.put(error);
        }
        letters.ended = true;
        letters.owed = 0;
        letters.wake();
    }

    /// Ends the session of a client that takes its replies too slowly.
    pub(super) fn give_up(&self) {
        let letters = &mut *self.0.lock();
        letters.drop_all();
        (letters.ended, letters.is_given_up, letters.owed) = (true, true, 0);
        letters.wake();
    }

    /// Whether the client took its replies too slowly. If not, the task is woken once it has.
    pub(super) fn is_given_up(&self, cx: &Context<'_>) -> bool {
        let letters = &mut *self.0.lock();
        if !letters.is_given_up {
            register(&mut letters.waker, cx);
        }
        letters.is_given_up
    }

    /// Notes that the session has ended.
    pub(super) fn leave(&self) {
        let letters = &mut *self.0.lock();
        letters.drop_all();
        letters.is_awaited = false;
        letters.waker = None;
    }

    /// Notes that the client is gone: what comes for it is dropped, but read, as its session waits for the last reply.
    pub(super) fn drain(&self) {
        let letters = &mut *self.0.lock();
        letters.drop_all();
        letters.is_awaited = true;
    }

    /// Moves replies into `buf`.
    pub(super) fn take(&self, cx: &Context<'_>, buf: &mut ReadBuf<'_>) -> TakenReplies {
        let letters = &mut *self.0.lock();
        let before = letters.held.len();
        if before == 0 {
            if letters.ended {
                return TakenReplies::Ended;
            }
            register(&mut letters.waker, cx);
            return TakenReplies::Nothing;
        }
        let count = before.min(buf.remaining());
        buf.put_slice(&letters.held.all()[..count]);
        letters.held.take(count, KEEP);
        letters.taken_in_all += count as u64;
        letters.count(before);
        TakenReplies::Some
    }

    /// Has the task woken once something comes.
    pub(super) fn register(&self, cx: &Context<'_>) {
        register(&mut self.0.lock().waker, cx);
    }

    /// Notes that the session waits for room on a link. Returns whether it did not before.
    pub(super) fn begin_waiting(&self) -> bool {
        !std::mem::replace(&mut self.0.lock().is_waiting, true)
    }

    /// Tells the session that there is room on the link.
    pub(super) fn has_room(&self) {
        let letters = &mut *self.0.lock();
        letters.is_waiting = false;
        letters.wake();
    }

    /// Has the session take all that is owed, though the client may not read: a command waits for it. Returns whether
    /// nothing is owed any more.
    pub(super) fn hurry(&self) -> bool {
        let letters = &mut *self.0.lock();
        letters.is_hurried = letters.owed > 0;
        !letters.is_hurried
    }

    /// Tells the session that it may send more: it may have waited for room while others were on its link. One that
    /// waits for replies looks after the link whenever it is woken, and must not be woken by that.
    pub(super) fn lend(&self) {
        let letters = &mut *self.0.lock();
        if !letters.is_hurried {
            letters.wake();
        }
    }

    /// Whether a command waits for all that is owed.
    pub(super) fn is_hurried(&self) -> bool {
        self.0.lock().is_hurried
    }

    /// How many replies are owed.
    pub(super) fn owed(&self) -> u32 {
        self.0.lock().owed
    }

    /// Whether no reply is owed.
    pub(super) fn is_settled(&self) -> bool {
        self.owed() == 0
    }

    /// Returns once no reply is owed.
    pub(super) async fn settled(&self) {
        poll_fn(|cx| {
            self.register(cx);
            if self.hurry() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Whether the session ends behind what has come.
    pub(super) fn has_ended(&self) -> bool {
        self.0.lock().ended
    }

    /// Whether the client is gone, and nobody waits for what it has sent.
    pub(super) fn is_useless(&self) -> bool {
        let letters = self.0.lock();
        letters.left && !letters.is_awaited
    }

    /// Whether the client is gone.
    pub(super) fn has_left(&self) -> bool {
        self.0.lock().left
    }

    /// The bytes that the session has not taken, and how many it has taken in all.
    pub(super) fn held(&self) -> (usize, u64) {
        let letters = self.0.lock();
        (letters.held.len(), letters.taken_in_all)
    }
}

/// Whether so much is held for all clients that no more than [`SHARED_HELD`] may be for each.
pub(super) fn is_too_much_held() -> bool {
    HELD_OF_ALL.load(Ordering::Relaxed) > MOST_HELD_OF_ALL
}

fn register(waker: &mut Option<Waker>, cx: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted_until_it_is_taken_or_dropped() {
        let cx = &Context::from_waker(Waker::noop());
        let counted = || HELD_OF_ALL.load(Ordering::Relaxed);
        let mut room = vec![0; SHARED_HELD];
        let ends: [fn(&Mailbox); 4] = [
            |mailbox| mailbox.end_with(b"-ERR\r\n"),
            Mailbox::give_up,
            Mailbox::leave,
            Mailbox::drain,
        ];
        for end in ends {
            for reads in 0..4 {
                let mailbox = Mailbox::default();
                mailbox.deliver(&[b'x'; SHARED_HELD], 0, FEW);
                assert_eq!(counted(), 0, "that much may be held for each");
                mailbox.deliver(&[b'x'; SHARED_HELD], 1, FEW);
                assert_eq!(counted(), 2 * SHARED_HELD);
                for _ in 0..reads {
                    mailbox.take(cx, &mut ReadBuf::new(&mut room));
                }
                end(&mailbox);
                mailbox.deliver(&[b'x'; SHARED_HELD], 1, FEW);
                while mailbox.held().0 > 0 {
                    mailbox.take(cx, &mut ReadBuf::new(&mut room));
                }
                assert_eq!(counted(), 0);
            }
        }
    }

    #[test]
    fn a_client_is_hurried_only_until_all_that_it_was_owed_has_come() {
        let mailbox = Mailbox::default();
        mailbox.owe(2);
        assert!(!mailbox.hurry() && mailbox.is_hurried());
        mailbox.deliver(b"+OK\r\n", 1, FEW);
        assert!(mailbox.is_hurried());
        mailbox.deliver(b"+OK\r\n", 1, FEW);
        mailbox.owe(1);
        assert!(!mailbox.is_hurried(), "its next large reply may take its time");
    }
}
