//! Client → data node: which bytes of the commands pass, and which commands must wait.

use std::ops::Range;

use super::{
    core::{Core, First, Tracking, Turn},
    dropping::Dropping,
    guarded::{
        acknowledged::{Exec, must_acknowledge},
        arm::{Arming, prepare_to_arm},
    },
    idiom_look::{Adopting, IdiomLook},
    jobs::{
        Pass, Waits as _,
        adopted_beside::BesideDataNode,
        adopted_multi::{LocatingTransaction, LockedExec},
        flushing::Flushing,
        own::OwnCommand,
        pass::{ClientReply, Login, Unidentified},
    },
    loss_news::Refused,
    notes::Noted,
    owed::Entry,
    screen::Guarding,
    session_metrics::CloseReason,
    transact::Transacting,
};
use crate::{
    clock::Instant,
    command::{MAX_BYTES_OF_MANY, max_words, operator},
    guard::catalog::{Glance, Table},
    resp::{
        inline,
        name::{Name, Own, ReplyMode},
        number,
        request::{INLINE_LIMIT, NextRequest, RequestScanner},
        split::{Split, split},
        words::{hides_a_name, may_be_answered_unasked, without_zero_bytes},
    },
};

/// Forwarded in place of a dropped command whose bytes turned out to be malformed, so that Redis
/// answers with its protocol error: the beginning of a command, and an invalid length.
const BEGINNING: &[u8] = b"*1\r\n";
const BAD_LENGTH: &[u8] = b"$-1\r\n";
/// Forwarded in place of a line whose quotes do not balance, so that no server can read the line in another way.
const UNBALANCED: &[u8] = b"\"\r\n";
/// Bytes of a command of ours besides its key and token: lengths, options, numbers.
const WORDS_SLACK: usize = 512;

/// Fate of a command.
enum Flow {
    /// Forwarded: its reply is expected.
    Forward,
    /// Kept back, with all behind it.
    Keep,
    /// Dropped: its bytes, as they arrive.
    Drop(Dropping),
    /// Dropped, with all behind it: a LOCK of a client that has gone, and what was to run under it.
    Unwanted,
}

/// Fate of a line that is judged as an array.
enum LineFlow {
    /// Dropped without an answer: it has no words.
    Done,
    /// The array was forwarded.
    Forwarded,
    /// The array was kept back, and so must be all behind the line.
    Kept,
    /// Dropped, with an answer.
    Dropped,
    /// Dropped, with all behind it.
    Unwanted,
}

/// A command that the scanner has found.
struct FoundCommand<'b> {
    name: Name,
    arguments: usize,
    /// Everything received from its first byte on.
    bytes: &'b [u8],
    /// Position of its first byte in all that the client has sent.
    position: u64,
}

/// State of one scan.
struct Scan {
    /// How the first command found goes on.
    first: First,
    /// Commands may be refused because of a loss.
    lost: bool,
    /// There are guards.
    is_guarded: bool,
    /// There are guards or adopt rules, by which commands are counted.
    is_seen: bool,
    /// Glance at the last command. It holds for the next command too if that begins alike: with a
    /// glance at each, a GET at depth 16 takes 229 instructions instead of 189.
    glance: Glance,
}

impl Core {
    /// Takes in bytes from the client, with the unsent ones at their beginning. Returns the range
    /// of them to send to the data node, behind its outbox.
    ///
    /// # Errors
    /// If the connection is to end.
    pub(super) fn client_sent(&mut self, bytes: &[u8]) -> Result<Range<usize>, CloseReason> {
        debug_assert!(!self.is_waiting() && bytes.len() >= self.desk.unsent.len());
        self.desk.unsent.clear();
        // Losses are taken only now, as this process may have stood still since it last looked.
        self.take_losses()?;
        Ok(self.scan(bytes, First::Anew))
    }

    /// Takes in bytes from the client while a command waits or is being gathered, or behind more
    /// unsent bytes than are shown again with them.
    ///
    /// # Errors
    /// If the connection is to end.
    pub(super) fn client_sent_more(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        self.take_losses()?;
        self.desk.unsent.extend_from_slice(bytes);
        match self.turn {
            Turn::Client => self.turn = Turn::Again(First::Anew),
            Turn::Gathering(_) => self.gather_more(),
            _ => {}
        }
        Ok(())
    }

    /// Finds the commands in `bytes` up to the first that must wait. Returns the range that passes.
    pub(super) fn scan(&mut self, bytes: &[u8], first: First) -> Range<usize> {
        let (mut from, mut pos, mut others) = (0, 0, 0);
        // The position of `bytes` in all that the client has sent.
        let begin = self.read - bytes.len() as u64;
        let table = self.desk.shared.guards.as_ref().map(|guards| guards.catalog.table());
        let commands = table.as_ref().and_then(|table| table.as_deref());
        let mut scan = Scan {
            first,
            lost: self.desk.losing.has_news(),
            is_guarded: table.is_some(),
            is_seen: table.is_some() || self.idiom_look.is_some(),
            glance: Glance::More,
        };
        if self.idiom_look.as_ref().is_some_and(|look| look.has_begun()) {
            self.see_more(bytes);
        }
        let mut is_unwanted = false;
        // Bytes from here on are kept back.
        let keep = loop {
            match self.tracking {
                Tracking::Matched => {}
                // A rule has been bridged or enforced meanwhile, and what passes is not seen.
                Tracking::Relayed if self.desk.must_be_followed() => {
                    self.tracking = Tracking::Closing;
                    break from;
                }
                Tracking::Relayed => break bytes.len(),
                Tracking::Muted => {
                    from = bytes.len();
                    break from;
                }
                Tracking::Closing => break from,
            }
            match self.requests.next(bytes, &mut pos) {
                NextRequest::End => {
                    if matches!(self.turn, Turn::Dropping(_)) {
                        from = bytes.len();
                        if self.requests.between_commands() {
                            self.answer_dropped();
                        }
                    }
                    break bytes.len();
                }
                NextRequest::Undecided => {
                    if self.answer_dropped() {
                        from = pos;
                    }
                    break pos;
                }
                NextRequest::Broken => {
                    from = self.broken(bytes, from, pos);
                    break bytes.len();
                }
                NextRequest::Command { name, arguments, at } => {
                    let (position, here) = (begin + at as u64, &bytes[at..]);
                    let found = FoundCommand { name, arguments, bytes: here, position };
                    if scan.lost && self.drop_too(&found) {
                        continue;
                    }
                    if self.answer_dropped() {
                        from = at;
                        break at;
                    }
                    if here.first() != Some(&b'*') && self.is_rewritten(here) {
                        self.desk.to_data.push(&bytes[from..at]);
                        from = at;
                        match self.line(&bytes[at..pos], position, &mut scan, commands) {
                            LineFlow::Done => from = pos,
                            LineFlow::Forwarded => (from, others) = (pos, others + 1),
                            LineFlow::Dropped => {}
                            LineFlow::Kept => {
                                self.desk.unsent.extend_from_slice(&bytes[pos..]);
                                from = bytes.len();
                                break from;
                            }
                            LineFlow::Unwanted => {
                                is_unwanted = true;
                                break at;
                            }
                        }
                        continue;
                    }
                    let is_answered = scan.is_seen && self.desk.is_answered();
                    match self.command(&found, &mut scan, commands) {
                        Flow::Forward => {
                            if scan.is_seen {
                                self.see(name, here, is_answered);
                            }
                        }
                        Flow::Keep => break at,
                        Flow::Unwanted => {
                            is_unwanted = true;
                            break at;
                        }
                        Flow::Drop(dropping) => {
                            self.desk.to_data.push(&bytes[from..at]);
                            self.turn = Turn::Dropping(dropping);
                            from = at;
                            continue;
                        }
                    }
                    others += 1;
                    let is_plain = name == Name::Other
                        && !scan.lost
                        && self.desk.conn.reply_mode == ReplyMode::On
                        && self.tracking == Tracking::Matched;
                    if is_plain {
                        let (is_guarded, glance) = (scan.is_guarded, scan.glance);
                        let is_unguarded = |command: &[u8]| {
                            let is_free = |known: &Table| known.is_free(glance, command);
                            !is_guarded || commands.is_some_and(is_free)
                        };
                        // Two calls, so that the look costs nothing where there is none.
                        let alike = match self.idiom_look.as_deref().map(IdiomLook::last) {
                            None => self.requests.skip_alike(bytes, &mut pos, is_unguarded),
                            Some(last) => self.requests.skip_alike(bytes, &mut pos, |command| {
                                last.is_key(command) && is_unguarded(command)
                            }),
                        };
                        others += u64::from(alike);
                        if alike > 0 && !self.desk.owed.push(Entry::Plain(alike)) {
                            self.relay();
                        }
                    }
                }
            }
        };
        debug_assert!(keep <= bytes.len());
        if others > 0 {
            self.desk.shared.metrics.commands_other.increment(others);
        }
        if keep < bytes.len() {
            self.requests.restart();
            if !is_unwanted {
                self.desk.unsent.extend_from_slice(&bytes[keep..]);
            }
        }
        from.min(keep)..keep
    }
}

impl Core {
    /// Whether this line is forwarded as an array, so that what was judged is what is carried out, even if a
    /// server splits lines into other words. An empty line passes: some clients send it as a keepalive.
    #[cold]
    fn is_rewritten(&self, line: &[u8]) -> bool {
        self.desk.has_rules() && !line.starts_with(b"\n") && !line.starts_with(b"\r\n")
    }

    /// Judges a line as the array that means the same, which is forwarded or kept back in its place.
    ///
    /// A line of blanks alone is dropped: behind it Valkey 8 reads arrays as lines, so that a write could
    /// hide in an argument.
    #[cold]
    fn line(
        &mut self,
        line: &[u8],
        position: u64,
        scan: &mut Scan,
        commands: Option<&Table>,
    ) -> LineFlow {
        let array = inline::as_array(line).unwrap_or_default();
        let NextRequest::Command { name, arguments, .. } =
            RequestScanner::default().start(&array, &mut 0)
        else {
            return LineFlow::Done;
        };
        let found = FoundCommand { name, arguments, bytes: &array, position };
        let is_answered = self.desk.is_answered();
        match self.command(&found, scan, commands) {
            Flow::Forward => {
                self.see(name, &array, is_answered);
                self.desk.to_data.push(&array);
                LineFlow::Forwarded
            }
            Flow::Keep => {
                // Positions go on as if the client had sent the array.
                let more = array.len() as i64 - line.len() as i64;
                self.read = self.read.saturating_add_signed(more);
                self.desk.losing.note_rewritten(position, more);
                self.desk.unsent.extend_from_slice(&array);
                LineFlow::Kept
            }
            Flow::Drop(dropping) => {
                self.turn = Turn::Dropping(dropping);
                LineFlow::Dropped
            }
            Flow::Unwanted => LineFlow::Unwanted,
        }
    }

    /// Decides the fate of a command. The order of the checks matters:
    ///
    /// 1. A client that the data node has not let in is refused: nothing is learned of it.
    /// 2. A lost lock is told before anything else runs that may count on it.
    /// 3. In a transaction about an adopted lock, commands mean something else than outside.
    /// 4. Adopt rules may take the command from the data node, so guards need not judge it.
    /// 5. What is left of a transaction and does not fit into it is refused: only now is it known to be left.
    /// 6. A name with a zero byte is settled before a name decides anything below.
    /// 7. A command that a job has let pass is judged no more.
    /// 8. The proxy's own commands never reach the data node.
    /// 9. Guards judge all that does, as `rename-command` may hide a write behind any name.
    /// 10. MULTI and EXEC wait where locks, fences or replicas must be asked first.
    /// 11. CLIENT REPLY, AUTH and HELLO change what later replies mean, so earlier replies come first.
    /// 12. Only what is surely forwarded names the client, and owes a reply.
    ///
    /// As a call of its own it would cost each command 30 instructions.
    #[inline(always)]
    fn command(
        &mut self,
        found: &FoundCommand<'_>,
        scan: &mut Scan,
        commands: Option<&Table>,
    ) -> Flow {
        let FoundCommand { name, arguments, bytes, position } = *found;
        let first = std::mem::replace(&mut scan.first, First::Anew);
        let passes = matches!(first, First::Pass(_));
        if first == First::Stranger {
            let error = std::mem::take(&mut self.desk.conn.refusal);
            return Flow::Drop(Dropping::Stranger(error));
        }
        if scan.lost && name != Name::Blank && !passes {
            scan.lost = self.desk.losing.refuse_at(position);
            if scan.lost && !self.is_about_lost(name, bytes) {
                self.note_lost_attempt(name, bytes);
                self.lose_in_transaction(name);
                return Flow::Drop(Dropping::Lost(Refused::one(name)));
            }
        }
        let transacts = self.desk.transaction.is_some() && !passes;
        if transacts {
            match self.transact(name, arguments, bytes) {
                Transacting::Pass => {}
                Transacting::Kept => return Flow::Keep,
                Transacting::Drop(dropping) => return Flow::Drop(dropping),
            }
        }
        let in_transaction = transacts && self.is_in_transaction();
        if let Some(look) = &mut self.idiom_look
            && !passes
        {
            match look.judge(name, bytes, in_transaction, &self.desk) {
                Adopting::Pass => {}
                Adopting::Unidentified => {
                    self.wait(Box::new(Unidentified));
                    return Flow::Keep;
                }
                Adopting::More => return Flow::Keep,
                Adopting::Instead(bytes) => return Flow::Drop(Dropping::Replaced(bytes)),
                Adopting::Beside(task) => {
                    if !self.desk.conn.in_multi() {
                        self.wait(Box::new(BesideDataNode(task)));
                        return Flow::Keep;
                    }
                }
                Adopting::Flush(flush) => {
                    if !self.desk.conn.in_multi() {
                        self.wait(Box::new(Flushing(flush)));
                        return Flow::Keep;
                    }
                }
                Adopting::Stop(mut task, length) => {
                    if transacts {
                        self.fit(name, &mut task);
                    }
                    let is_refused = task.work.is_refusal();
                    self.desk.conn.lost_watch |= name == Name::Watch && is_refused;
                    if length == 0 {
                        return Flow::Drop(Dropping::Adopted(task));
                    }
                    self.wait(Box::new(OwnCommand::adopted(task, length)));
                    return Flow::Keep;
                }
            }
        }
        if transacts && let Some(dropping) = self.misfit(name) {
            return Flow::Drop(dropping);
        }
        let name = match name {
            Name::ZeroByte
                if scan.is_guarded || self.idiom_look.is_some() || hides_a_name(bytes) =>
            {
                return Flow::Drop(Dropping::Replaced(without_zero_bytes(bytes)));
            }
            // Redis says itself that it has no such command.
            Name::ZeroByte => Name::Other,
            name => name,
        };
        match (first, name) {
            (First::Pass(Pass::Counted), _) => {}
            (First::Pass(Pass::Unanswered(mode)), _) => {
                self.desk.conn.next_only = false;
                self.desk.conn.reply_mode = mode;
                return Flow::Forward;
            }
            (_, Name::Own(own)) => {
                if let Some(flow) = self.own(own, arguments, bytes) {
                    return flow;
                }
                // The command asks about commands of Redis too, so Redis answers.
                let noted = self.desk.note(Name::Other, arguments);
                self.noted(noted);
                return Flow::Forward;
            }
            // SELECT, CLUSTER and CLIENT are judged too: `rename-command` may give their names to other
            // commands.
            (_, Name::Other | Name::SetName | Name::Select | Name::Topology(_))
                if scan.is_guarded && !scan.is_free(commands, bytes) =>
            {
                match self.guard(commands, scan.glance, bytes, first != First::NoRoom) {
                    Guarding::Pass => {}
                    Guarding::Kept => return Flow::Keep,
                    Guarding::Drop(dropping) => return Flow::Drop(dropping),
                }
            }
            (_, Name::Multi) if LocatingTransaction::is_due(&self.desk) => {
                self.wait(Box::new(LocatingTransaction));
                return Flow::Keep;
            }
            (_, Name::Exec) if arguments == 1 && !self.desk.conn.locks.is_empty() => {
                if let Split::Whole { length, .. } = split(bytes, 1, INLINE_LIMIT) {
                    self.wait(Box::new(LockedExec::new(length)));
                }
                return Flow::Keep;
            }
            (_, Name::Multi) if scan.is_guarded && prepare_to_arm(&mut self.desk) => {
                self.wait(Box::new(Arming));
                return Flow::Keep;
            }
            (_, Name::Exec)
                if scan.is_guarded && arguments == 1 && must_acknowledge(&self.desk) =>
            {
                if let Split::Whole { length, .. } = split(bytes, 1, INLINE_LIMIT) {
                    self.wait(Box::new(Exec::new(length)));
                }
                return Flow::Keep;
            }
            // Whether the data node will obey is known only once every earlier reply is in.
            (_, Name::ClientReply(mode)) => {
                self.wait(Box::new(ClientReply(mode)));
                return Flow::Keep;
            }
            // Redis 7.4 to 8 may drop the reply to a failing AUTH or HELLO behind other output.
            (_, Name::Auth | Name::Hello) if !self.desk.owed.is_empty() => {
                self.wait(Box::new(Login));
                return Flow::Keep;
            }
            _ => {}
        }
        if matches!(name, Name::Hello | Name::SetName) && !self.take_name(bytes) {
            return Flow::Keep;
        }
        // Whether a reply comes depends on the data node's replicas, so those behind it could not be told apart.
        let is_uncertain =
            self.desk.conn.reply_mode == ReplyMode::Skip && may_be_answered_unasked(bytes);
        let noted = match is_uncertain {
            true => Noted::Lost,
            false => self.desk.note(name, arguments),
        };
        self.noted(noted);
        Flow::Forward
    }

    /// Begins a command of ours if all of it is there. Returns `None` if Redis answers the command.
    fn own(&mut self, own: Own, arguments: usize, bytes: &[u8]) -> Option<Flow> {
        match split(bytes, max_words(own), self.own_limit(own)) {
            Split::Whole { words, .. }
                if own == Own::Command && operator::command(&words[1..]).is_none() =>
            {
                None
            }
            Split::Whole { .. } if own.takes_locks() && self.client_done => Some(Flow::Unwanted),
            Split::Whole { words, length } => {
                let command = OwnCommand::new(own, &words[1..], length, &self.desk.config.locks);
                self.wait(Box::new(command));
                Some(Flow::Keep)
            }
            Split::Incomplete => Some(Flow::Keep),
            // It has more words than any command of ours, so it asks about others too.
            Split::TooLong if own == Own::Command => None,
            Split::TooLong => Some(Flow::Drop(Dropping::TooLong { own, words: arguments })),
        }
    }

    /// Returns the most bytes that a command of ours can have.
    fn own_limit(&self, own: Own) -> usize {
        let limit = self.desk.config.locks.max_key + self.desk.config.locks.max_token + WORDS_SLACK;
        match own {
            Own::Mlock | Own::Munlock | Own::Command => limit.max(MAX_BYTES_OF_MANY),
            _ => limit,
        }
    }

    /// Whether a command goes on although others are refused: an UNLOCK, MUNLOCK or RENEW of the lost lock, or one
    /// of these, a LOCK or a MLOCK that is not whole yet.
    #[cold]
    fn is_about_lost(&self, name: Name, bytes: &[u8]) -> bool {
        let Name::Own(own) = name else { return false };
        if !own.takes_locks() && !matches!(own, Own::Unlock | Own::Munlock | Own::Renew) {
            return false;
        }
        match split(bytes, max_words(own), self.own_limit(own)) {
            Split::Incomplete => true,
            Split::TooLong => false,
            Split::Whole { .. } if own.takes_locks() => false,
            Split::Whole { words, length } => {
                // Judged as when it begins: otherwise it would be looked at again and again.
                let locks = &self.desk.config.locks;
                OwnCommand::new(own, &words[1..], length, locks).tells_of_loss(&self.desk)
            }
        }
    }

    /// Notes a LOCK or MLOCK that is refused because the client must first be told of a loss.
    #[cold]
    fn note_lost_attempt(&mut self, name: Name, bytes: &[u8]) {
        if let Name::Own(own) = name
            && own.takes_locks()
            && let Split::Whole { words, length } =
                split(bytes, max_words(own), self.own_limit(own))
        {
            let command = OwnCommand::new(own, &words[1..], length, &self.desk.config.locks);
            command.note_attempt(Instant::now(), &mut self.desk);
        }
    }

    /// Drops one more command together with those being dropped. Returns `false` if it must be
    /// judged by itself.
    #[inline]
    fn drop_too(&mut self, found: &FoundCommand<'_>) -> bool {
        let Turn::Dropping(Dropping::Lost(refused)) = &mut self.turn else { return false };
        let too = self.desk.losing.is_refused_too(refused, found.name, found.position);
        refused.count += usize::from(too);
        too
    }

    /// Answers a dropped command whose last byte has been seen. Returns `false` if none was being
    /// dropped.
    #[inline]
    fn answer_dropped(&mut self) -> bool {
        if !matches!(self.turn, Turn::Dropping(_)) {
            return false;
        }
        if let Turn::Dropping(dropping) = std::mem::take(&mut self.turn) {
            self.wait(dropping.end());
        }
        true
    }

    /// Handles bytes at `pos` that Redis would not parse. Returns from where on bytes pass.
    #[cold]
    fn broken(&mut self, bytes: &[u8], mut from: usize, pos: usize) -> usize {
        self.desk.shared.metrics.protocol_errors.increment(1);
        if matches!(self.turn, Turn::Dropping(_)) {
            self.turn = Turn::Client;
            // Redis names a byte that begins no length in its error.
            let offending = bytes[pos..].iter().take(1).find(|byte| **byte != b'$');
            let out = &mut self.desk.to_data;
            out.push(BEGINNING);
            out.push(offending.map_or(BAD_LENGTH, std::slice::from_ref));
            out.push(b"\r\n");
            from = bytes.len();
        }
        if self.desk.conn.reply_mode != ReplyMode::On {
            // Redis closes once pending replies are out. Here they are out already, and Redis would
            // forget to close.
            self.start_linger();
        }
        self.relay();
        if self.tracking == Tracking::Closing {
            // Redis words the error, and must see nothing behind it.
            self.tracking = Tracking::Muted;
            self.push_broken(bytes, from, pos);
            from = bytes.len();
        }
        from
    }

    /// Forwards the bytes from `from` up to the end of the malformed line at `pos`, and nothing
    /// behind it.
    ///
    /// Redis's answer to such a line depends on how the line arrived: an inline command that is too
    /// long is carried out all the same if its end arrives soon enough.
    fn push_broken(&mut self, bytes: &[u8], from: usize, pos: usize) {
        if from > pos {
            // The line was dropped, and its error is forwarded already.
            return;
        }
        let (before, rest) = bytes.split_at(pos);
        let is_array = rest.first() == Some(&b'*') || !self.requests.between_commands();
        // Redis ends a line of an array at its CR and skips the byte behind it, whatever that is.
        let line_end = |from: usize| {
            let (end, length) = if is_array { (b'\r', 2) } else { (b'\n', 1) };
            let end = from + memchr::memchr(end, rest.get(from..)?)? + length;
            (end <= rest.len()).then_some(end)
        };
        let mut end = line_end(0);
        // Until a command's name is known, `pos` is where its first line begins, but the error may be in its second.
        if self.requests.between_commands()
            && let Some(first) = end
            && is_head(&rest[..first])
        {
            end = line_end(first);
        }
        let line = &rest[..end.unwrap_or(rest.len())];
        let out = &mut self.desk.to_data;
        out.push(&before[from..]);
        if is_array {
            out.push(line);
            if end.is_none() {
                out.push(b"\r\n");
            }
        } else if memchr::memchr(0, line).is_none() {
            // Redis 7 waits in vain for the end of a line with a NUL in it; not every version does.
            out.push(if end.is_some() { UNBALANCED } else { line });
        }
    }
}

/// Whether Redis reads this line, of which two bytes are its end, as the head of a command and
/// goes on behind it.
fn is_head(line: &[u8]) -> bool {
    let digits = line.strip_prefix(b"*").and_then(|rest| rest.split_last_chunk::<2>());
    digits.map(|(digits, _)| digits).and_then(number::integer).is_some_and(|words| words > 0)
}

impl Scan {
    /// Whether no guard is about the command, as far as a glance tells.
    fn is_free(&mut self, commands: Option<&Table>, bytes: &[u8]) -> bool {
        commands.is_some_and(|known| {
            self.glance = known.glance(bytes);
            known.is_free(self.glance, bytes)
        })
    }
}
