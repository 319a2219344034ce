//! One session's part of shared connections: to the session, a connection to the data node like any other.
//!
//! It is shared until its client leaves state in a connection. From then on it has one of its own, for good. It goes
//! from one connection to another only once every reply owed has come: else a client's later command could overtake
//! an earlier one.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::{
    greeter::{self, Greeter, assume, check_let_in, exchange, refused},
    greeting::{ClientGreeting, without_id},
    link_pools,
    mailbox::{MANY_AT_ONCE, Mailbox, TakenReplies},
    pinned::{PinnedKind, shown},
    share_metrics::PinCause,
    shared_link::{Pushed, SharedLink},
    sharers::CountedSharer,
    sharing::{Connecting, Sharing},
    treatment::{Treatment, treatment},
};
use crate::{
    data::Tenure,
    net::{Outbox, SharedPart, Stream},
    resp::words::{self, Walk, WordStep, too_much_of_a_stranger},
    sync::Mutex,
};

/// Most bytes of a command on a link. A larger one goes over a connection of its own.
const LARGEST: usize = 64 * 1024;

/// Most bytes of a word that may be a command's name.
const LONGEST_NAME: usize = 32;

/// Never locked: a mutex lets a session be named on other threads.
type Pending<T> = Mutex<Pin<Box<dyn Future<Output = io::Result<T>> + Send>>>;

/// One session's part of the connections to the data node.
pub(crate) struct SharedUpstream {
    sharing: Arc<Sharing>,
    tenure: Option<Arc<Tenure>>,
    connecting: Connecting,
    /// Where the client is, if known.
    address: Option<IpAddr>,
    counted: CountedSharer,
    mailbox: Arc<Mailbox>,
    way: SharedWay,
    /// The link on which the last command went.
    link: Option<Arc<SharedLink>>,
    greeting: ClientGreeting,
    /// A command that is not whole, or that cannot go on yet.
    begun: Option<Box<BegunCommand>>,
    /// The next command is whole and waits.
    waits: bool,
    /// The session sends no more.
    is_shut: bool,
    /// The client has sent a command that was no greeting.
    has_begun: bool,
    /// When the client came.
    came: Instant,
    /// The data node lets the client in without AUTH, as it said when the client came or later.
    is_let_in: bool,
    blocking: BlockingCommands,
}

/// Which of a client's commands on links may block.
#[derive(Debug, Default)]
struct BlockingCommands {
    /// How many commands were put on links.
    sent: u64,
    /// The numbers of those that may block, from 0. Answered ones are dropped when the next is noted.
    at: Option<Box<CommandNumbers>>,
}

type CommandNumbers = VecDeque<u64>;

/// A command, as far as the session has handed it over, and the walk over it.
#[derive(Default)]
struct BegunCommand {
    bytes: Vec<u8>,
    walk: Walk,
}

impl BlockingCommands {
    /// Notes that the last command that was put on a link may block. `owed`: replies that are owed by now.
    fn note(&mut self, owed: u32) {
        let next = self.sent.saturating_sub(owed.into());
        let at = self.at.get_or_insert_default();
        at.retain(|at| *at >= next);
        at.push_back(self.sent.saturating_sub(1));
    }

    /// Whether one of `owed` replies is that to such a command.
    fn is_owed(&self, owed: u32) -> bool {
        let last = self.at.as_ref().and_then(|at| at.back());
        last.is_some_and(|at| *at >= self.sent.saturating_sub(owed.into()))
    }

    /// Whether the next of `owed` replies is that to such a command.
    fn is_next(&self, owed: u32) -> bool {
        let next = self.sent.saturating_sub(owed.into());
        owed > 0 && self.at.as_ref().is_some_and(|at| at.contains(&next))
    }
}

/// A command, and the data node's answer to it.
type TriedCommand = (Vec<u8>, Pending<Vec<u8>>);

/// Where the session's commands go.
enum SharedWay {
    /// On links.
    Links,
    /// Nowhere until the data node has answered this greeting.
    Greeting(Box<TriedCommand>),
    /// Nowhere until the data node has accepted or refused this command.
    Trying(Box<TriedCommand>),
    /// Nowhere until the data node has said whether it lets the client in without AUTH.
    Entering(Box<Pending<bool>>),
    /// Nowhere until there is a connection of the client's own.
    Pinning(Box<Pending<Stream>>),
    /// Over that connection.
    Own(Box<(Stream, Outbox)>),
    /// Nowhere any more.
    Ended,
}

/// What a command at the beginning of some bytes needs.
enum CommandStep {
    /// This many bytes are done with.
    Done(usize),
    /// The rest of the command, which has at least this many bytes.
    More(usize),
    /// That an earlier reply comes, or that there is room.
    Wait,
    /// A connection of the client's own.
    Pin(PinCause),
}

/// Returns the length of the first command, which takes `length` bytes, with those behind it that are alike up to the
/// end of the name at `head`, and how many they are, `most` of them. Commands of a pipeline often are.
fn alike(bytes: &[u8], mut length: usize, head: usize, most: u32) -> (usize, u32) {
    let (head, mut count) = (&bytes[..head], 1);
    while length < LARGEST
        && count < most
        && let Some(rest) = bytes.get(length..)
        && rest.starts_with(head)
        && let WordStep::End(more @ ..=LARGEST) = Walk::default().finish(rest)
    {
        (length, count) = (length + more, count + 1);
    }
    (length, count)
}

/// Returns the name of the first command, with its subcommand where only that says what it does, for operators. Empty
/// if it is not as names of commands are: it may be anything, also a secret.
fn name_of(bytes: &[u8]) -> String {
    let (mut words, mut name) = (Walk::default(), String::new());
    while let WordStep::Word(range) = words.step(bytes) {
        let word = &bytes[range];
        let is_named = |byte: &u8| byte.is_ascii_alphabetic() || b"._-".contains(byte);
        if word.len() > LONGEST_NAME || !word.iter().all(is_named) {
            break;
        }
        if !name.is_empty() {
            name.push(' ');
        }
        name.extend(word.iter().map(|byte| char::from(byte.to_ascii_uppercase())));
        if !matches!(&*name, "CLIENT" | "SCRIPT" | "FUNCTION") {
            break;
        }
    }
    name
}

/// Returns the client's own connection, once all is sent that came before it was there.
///
/// # Errors
/// The network's.
fn poll_own<'o>(
    own: &'o mut (Stream, Outbox),
    cx: &mut Context<'_>,
) -> Poll<io::Result<Pin<&'o mut Stream>>> {
    let (stream, outbox) = own;
    ready!(outbox.poll_flush(stream, cx))?;
    Poll::Ready(Ok(Pin::new(stream)))
}

impl fmt::Debug for SharedUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedUpstream")
    }
}

impl SharedUpstream {
    /// Makes the part of a client that comes now, and returns the tenure with which its session must end. Where no link
    /// of this thread shows that the data node can be reached, it is connected to once.
    ///
    /// # Errors
    /// The last reason why there was no connection.
    pub(crate) async fn admit(
        sharing: Arc<Sharing>,
        connecting: Connecting,
        address: Option<IpAddr>,
    ) -> io::Result<(SharedUpstream, Option<Arc<Tenure>>)> {
        let tenure = match link_pools::reached(&sharing) {
            Some(tenure) => tenure,
            // Boxed, as most clients come while there is a link.
            None => Box::pin(Greeter::of(&sharing).reach(&sharing, connecting)).await?,
        };
        let upstream = SharedUpstream {
            is_let_in: false,
            came: Instant::now(),
            counted: CountedSharer::come(sharing.sharers.clone()),
            sharing,
            tenure: tenure.clone(),
            connecting,
            address,
            mailbox: Arc::default(),
            way: SharedWay::Links,
            link: None,
            greeting: ClientGreeting::default(),
            begun: None,
            waits: false,
            is_shut: false,
            has_begun: false,
            blocking: BlockingCommands::default(),
        };
        Ok((upstream, tenure))
    }

    /// Moves a greeting or a connection on. Ready once commands can go on.
    fn poll_way(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.way {
            SharedWay::Links | SharedWay::Own(_) | SharedWay::Ended => return Poll::Ready(()),
            SharedWay::Greeting(asked) => {
                let (command, asking) = &mut **asked;
                let answered = ready!(asking.get_mut().as_mut().poll(cx));
                let command = std::mem::take(command);
                match answered {
                    // The client was let in once, and would not be now.
                    Ok(reply) if self.is_guest() && reply.starts_with(b"-NOAUTH") => {
                        self.end(&refused(&reply));
                    }
                    Ok(reply) => {
                        if !reply.starts_with(b"-") {
                            // It had room before it was asked for.
                            let _ = self.greeting.accepted(&words::of(&command));
                            (self.link, self.is_let_in) = (None, true);
                        }
                        self.way = SharedWay::Links;
                        self.mailbox.tell(&without_id(reply));
                    }
                    Err(error) => self.end(&error),
                }
            }
            SharedWay::Trying(asked) => {
                let (command, asking) = &mut **asked;
                let answered = ready!(asking.get_mut().as_mut().poll(cx));
                let command = std::mem::take(command);
                match answered {
                    Ok(reply) if reply.starts_with(b"-") => {
                        self.way = SharedWay::Links;
                        self.mailbox.tell(&reply);
                    }
                    // It is sent once more, over the connection in which it is to leave state.
                    Ok(_) => self.pin(PinCause::Client, &command, Some(command.clone())),
                    Err(error) => self.end(&error),
                }
            }
            SharedWay::Entering(asking) => match ready!(asking.get_mut().as_mut().poll(cx)) {
                Ok(is_let_in) => (self.way, self.is_let_in) = (SharedWay::Links, is_let_in),
                Err(error) => self.end(&error),
            },
            SharedWay::Pinning(connecting) => {
                let connected = ready!(connecting.get_mut().as_mut().poll(cx));
                match connected {
                    Ok(_) if self.mailbox.has_ended() => self.way = SharedWay::Ended,
                    Ok(stream) => {
                        let mut outbox = Outbox::default();
                        outbox.push(&self.begun.take().unwrap_or_default().bytes);
                        (self.link, self.greeting) = (None, ClientGreeting::default());
                        self.way = SharedWay::Own(Box::new((stream, outbox)));
                    }
                    Err(error) => self.end(&error),
                }
            }
        }
        Poll::Ready(())
    }

    /// Ends the session, with the data node's error if there is one.
    fn end(&mut self, error: &io::Error) {
        self.way = SharedWay::Ended;
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                self.mailbox.end_with(format!("{error}\r\n").as_bytes());
            }
            _ => self.mailbox.end(),
        }
    }

    /// Takes in what the session writes. Returns how many bytes were taken, which may be none.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        // A command that waits for a way goes on waiting.
        self.waits &= !matches!(self.way, SharedWay::Links);
        while matches!(self.way, SharedWay::Links) {
            let Some(mut begun) = self.begun.take() else {
                if at == bytes.len() {
                    break;
                }
                let mut walk = Walk::default();
                match self.step(&bytes[at..], &mut walk) {
                    CommandStep::Done(length) => at += length,
                    CommandStep::More(_) => {
                        self.begun =
                            Some(Box::new(BegunCommand { bytes: bytes[at..].to_vec(), walk }));
                        at = bytes.len();
                        break;
                    }
                    CommandStep::Wait => {
                        self.waits = true;
                        break;
                    }
                    CommandStep::Pin(by) => self.pin(by, &bytes[at..], None),
                }
                continue;
            };
            let goes_on = match self.step(&begun.bytes, &mut begun.walk) {
                CommandStep::Done(length) => {
                    debug_assert_eq!(length, begun.bytes.len());
                    continue;
                }
                CommandStep::More(least) if at < bytes.len() => {
                    let more = least.saturating_sub(begun.bytes.len()).min(bytes.len() - at);
                    begun.bytes.extend_from_slice(&bytes[at..at + more]);
                    at += more;
                    true
                }
                CommandStep::More(_) => false,
                CommandStep::Wait => {
                    self.waits = true;
                    false
                }
                CommandStep::Pin(by) => {
                    self.pin(by, &begun.bytes, None);
                    true
                }
            };
            self.begun = Some(begun);
            if !goes_on {
                break;
            }
        }
        at
    }

    /// Takes the command at the beginning of `bytes` one step on.
    fn step(&mut self, bytes: &[u8], walk: &mut Walk) -> CommandStep {
        match bytes {
            [b'*', ..] => {}
            // Redis skips an empty line. The session sends one as a sign of life.
            [b'\n', ..] | [b'\r', b'\n', ..] => {
                if let Some(link) = &self.link {
                    link.pulse();
                }
                return CommandStep::Done(if bytes[0] == b'\n' { 1 } else { 2 });
            }
            [b'\r'] => return CommandStep::More(2),
            _ => return CommandStep::Pin(PinCause::Inline),
        }
        let length = match walk.finish(bytes) {
            WordStep::End(length) if length <= LARGEST => length,
            WordStep::More(least) if least <= LARGEST => {
                // Redis refuses too much of a stranger as soon as it hears of it.
                let is_too_much = too_much_of_a_stranger(bytes).is_some();
                let entering = is_too_much.then(|| self.enter()).flatten();
                return entering.unwrap_or(CommandStep::More(least));
            }
            WordStep::End(_) | WordStep::More(_) => return CommandStep::Pin(PinCause::Large),
            WordStep::Bad | WordStep::Word(_) => return CommandStep::Pin(PinCause::Broken),
        };
        let command = &bytes[..length];
        let mut words = Walk::default();
        let WordStep::Word(name) = words.step(command) else {
            return CommandStep::Done(length);
        };
        let second = match words.step(command) {
            WordStep::Word(range) => Some(&command[range]),
            _ => None,
        };
        match treatment(&command[name.clone()], second) {
            Treatment::Share if second.is_some() => {
                self.share(bytes, length, Some(name.end + 2), false)
            }
            Treatment::Share => self.share(bytes, length, None, false),
            Treatment::Alone => self.share(bytes, length, None, true),
            Treatment::Select if self.keeps_database(second) => {
                self.share(bytes, length, None, false)
            }
            Treatment::Select if self.has_begun => CommandStep::Pin(PinCause::Select),
            Treatment::Select | Treatment::Greet => self.greet(command),
            Treatment::Try => self.try_out(command),
            Treatment::Quit if self.all_has_come() => {
                self.mailbox.tell(b"+OK\r\n");
                self.mailbox.end();
                self.way = SharedWay::Ended;
                CommandStep::Done(length)
            }
            Treatment::Quit => CommandStep::Wait,
            Treatment::Kill => {
                self.pin(PinCause::Other, command, Some(command.to_vec()));
                CommandStep::Done(length)
            }
            Treatment::Pin(by) => CommandStep::Pin(by),
        }
    }

    /// Whether every reply owed has come. If not, they come though the client may not read: a command waits for them.
    fn all_has_come(&self) -> bool {
        let is_settled = self.mailbox.hurry();
        if !is_settled && let Some(link) = &self.link {
            link.look(&self.mailbox);
        }
        is_settled
    }

    /// Whether all that the client has sent is carried out, as far as it will be: Redis drops what stands behind a
    /// command that blocks once the client has hung up.
    fn is_settled(&self) -> bool {
        let owed = self.mailbox.owed();
        owed == 0 || self.blocking.is_next(owed)
    }

    /// Whether this SELECT is of the database that the client has, behind other commands.
    fn keeps_database(&self, wanted: Option<&[u8]>) -> bool {
        let database = self.greeting.standing.database().to_string();
        self.has_begun && wanted.is_some_and(|wanted| wanted == database.as_bytes())
    }

    /// Whether the client has been let in without AUTH.
    fn is_guest(&self) -> bool {
        self.is_let_in && !self.greeting.standing.has_authenticated()
    }

    /// Returns what must come before a command may go on a link: that the data node lets the client in. A stranger gets
    /// a connection of its own, over which Redis tells it what it must do.
    fn enter(&mut self) -> Option<CommandStep> {
        if self.is_let_in || self.greeting.standing.has_authenticated() {
            return None;
        }
        let greeter = Greeter::of(&self.sharing);
        match greeter.known(self.came) {
            Some(true) => {
                self.is_let_in = true;
                return None;
            }
            Some(false) => return Some(CommandStep::Pin(PinCause::Stranger)),
            None => {}
        }
        let (sharing, came, connecting) = (self.sharing.clone(), self.came, self.connecting);
        let asking = async move { greeter.lets_in(&sharing, came, connecting).await };
        self.way = SharedWay::Entering(Box::new(Mutex::new(Box::pin(asking))));
        Some(CommandStep::Wait)
    }

    /// Hands the first command, which takes `length` bytes, to a link; with those behind it that are alike up to the end
    /// of the name at `head`, if that is given.
    fn share(
        &mut self,
        bytes: &[u8],
        length: usize,
        head: Option<usize>,
        alone: bool,
    ) -> CommandStep {
        if let Some(entering) = self.enter() {
            return entering;
        }
        self.has_begun = true;
        // Not amid a pipeline: all its replies would have to come first, whether the client reads or not.
        if self.mailbox.gets_large_replies() && self.mailbox.is_settled() {
            return CommandStep::Pin(PinCause::Replies);
        }
        // With guards a link outlives the client, and would carry out what stands behind.
        if self.sharing.is_strict
            && self.blocking.at.is_some()
            && self.blocking.is_owed(self.mailbox.owed())
            && !self.all_has_come()
        {
            return CommandStep::Wait;
        }
        let mut room = self.mailbox.room();
        if room == 0 && !self.mailbox.has_ended() {
            // A client may write its whole pipeline before it reads. The data node holds the replies.
            match &self.link {
                Some(link) if link.is_lent_to(&self.mailbox) => room = MANY_AT_ONCE,
                _ => return CommandStep::Wait,
            }
        }
        let (length, count) = head.map_or((length, 1), |head| alike(bytes, length, head, room));
        loop {
            let link = self.link();
            match link.push(&bytes[..length], count, &self.mailbox, alone) {
                Pushed::Taken => {
                    self.blocking.sent += u64::from(count);
                    if alone {
                        self.blocking.note(self.mailbox.owed());
                    }
                    return CommandStep::Done(length);
                }
                Pushed::Full => return CommandStep::Wait,
                // The replies owed over this link come first. They do, as that becomes the client's own behind others.
                Pushed::Gone if !self.mailbox.is_settled() => return CommandStep::Wait,
                Pushed::Gone if self.mailbox.has_ended() => return CommandStep::Wait,
                Pushed::Gone => self.link = None,
            }
        }
    }

    /// Returns the link for the next command.
    fn link(&mut self) -> Arc<SharedLink> {
        if let Some(link) = &self.link {
            return link.clone();
        }
        let (standing, tenure) = (&self.greeting.standing, self.tenure.as_ref());
        let link =
            link_pools::link(&self.sharing, standing, tenure, &self.mailbox, self.connecting);
        if self.sharing.is_strict {
            link.bind(&self.mailbox);
        }
        self.link = Some(link.clone());
        link
    }

    /// Asks the data node for what a greeting wants, once every reply has come.
    fn greet(&mut self, command: &[u8]) -> CommandStep {
        if !self.all_has_come() {
            return CommandStep::Wait;
        }
        let (sharing, standing) = (self.sharing.clone(), &self.greeting.standing);
        let mut wanted = self.greeting.clone();
        if let Err(by) = wanted.accepted(&words::of(command)) {
            return CommandStep::Pin(by);
        }
        // A password that has been changed must not keep a client from the new one.
        let steps = match wanted.standing.has_another_auth(standing) {
            true => Vec::new(),
            false => standing.identity(),
        };
        let (connecting, asked) = (self.connecting, command.to_vec());
        let asking = async move {
            Greeter::of(&sharing).ask(&sharing, steps, asked, false, connecting).await
        };
        self.way = SharedWay::Greeting(Box::new((command.to_vec(), Mutex::new(Box::pin(asking)))));
        CommandStep::Done(command.len())
    }

    /// Has the data node carry a command out over a connection that is nobody's, once every reply has come.
    fn try_out(&mut self, command: &[u8]) -> CommandStep {
        if !self.all_has_come() {
            return CommandStep::Wait;
        }
        let (sharing, connecting) = (self.sharing.clone(), self.connecting);
        let (steps, asked) = (self.greeting.standing.identity(), command.to_vec());
        let asking = async move {
            Greeter::of(&sharing).ask(&sharing, steps, asked, true, connecting).await
        };
        self.way = SharedWay::Trying(Box::new((command.to_vec(), Mutex::new(Box::pin(asking)))));
        CommandStep::Done(command.len())
    }

    /// Who the client is, as operators are told.
    fn who(&self) -> String {
        if let Some(name) = self.greeting.name() {
            return shown(&name);
        }
        let address = self.address.map_or_else(|| "unknown".into(), |address| address.to_string());
        match self.greeting.library() {
            Some(library) => format!("{} at {address}", shown(&library)),
            None => address,
        }
    }

    /// Opens a connection of the client's own, for the command at the beginning of `bytes`. `first`: goes over it before
    /// the client's database and names are set.
    fn pin(&mut self, by: PinCause, bytes: &[u8], first: Option<Vec<u8>>) {
        self.sharing.metrics.pinned(by);
        self.counted.pin(PinnedKind { client: self.who(), by, command: name_of(bytes) });
        let (sharing, connecting) = (self.sharing.clone(), self.connecting);
        let (identity, place) = (self.greeting.standing.identity(), self.greeting.place());
        let (is_guest, tenure) = (self.is_guest(), self.tenure.clone());
        let mailbox = self.mailbox.clone();
        let opening = async move {
            let mut connected = greeter::connect(&sharing, connecting).await?;
            let is_same = match (&connected.tenure, &tenure) {
                (None, None) => true,
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                _ => false,
            };
            if !is_same {
                return Err(io::ErrorKind::NotConnected.into());
            }
            let stream = &mut connected.stream;
            assume(stream, &identity).await?;
            if is_guest {
                check_let_in(stream).await?;
            }
            if let Some(first) = first {
                mailbox.settled().await;
                mailbox.tell(&exchange(stream, &first).await?);
            }
            assume(stream, &place).await?;
            Ok(connected.stream)
        };
        self.all_has_come();
        let mailbox = self.mailbox.clone();
        let opening = async move {
            let opened = opening.await;
            // A refusal, too, comes behind the replies to what was sent before.
            mailbox.settled().await;
            opened
        };
        self.way = SharedWay::Pinning(Box::new(Mutex::new(Box::pin(opening))));
    }
}

impl Drop for SharedUpstream {
    fn drop(&mut self) {
        self.mailbox.leave();
        if let Some(link) = &self.link {
            link.look(&self.mailbox);
        }
    }
}

impl AsyncRead for SharedUpstream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if let SharedWay::Own(own) = &mut this.way {
                let (stream, outbox) = &mut **own;
                // What was sent before the connection was there may be all that is sent.
                let _ = outbox.poll_flush(stream, cx)?;
                if this.mailbox.held().0 == 0 {
                    return Pin::new(stream).poll_read(cx, buf);
                }
            }
            match this.mailbox.take(cx, buf) {
                TakenReplies::Some => {
                    if let Some(link) = &this.link {
                        link.look(&this.mailbox);
                    }
                    return Poll::Ready(Ok(()));
                }
                TakenReplies::Ended => return Poll::Ready(Ok(())),
                TakenReplies::Nothing => {}
            }
            if this.waits && this.begun.is_some() {
                // The session has handed the whole command over, and will not do so again.
                this.take(&[]);
            }
            if matches!(this.way, SharedWay::Links) {
                let is_done = this.is_shut && !this.waits && this.is_settled();
                return if is_done { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            ready!(this.poll_way(cx));
        }
    }
}

impl AsyncWrite for SharedUpstream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            ready!(this.poll_way(cx));
            match &mut this.way {
                SharedWay::Own(own) => return ready!(poll_own(own, cx))?.poll_write(cx, bytes),
                SharedWay::Ended => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                SharedWay::Links if this.mailbox.has_ended() => {
                    return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                }
                _ => {}
            }
            this.mailbox.register(cx);
            match this.take(bytes) {
                0 if matches!(this.way, SharedWay::Links) => return Poll::Pending,
                0 => {}
                taken => return Poll::Ready(Ok(taken)),
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.way {
            SharedWay::Own(own) => ready!(poll_own(own, cx))?.poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            ready!(this.poll_way(cx));
            match &mut this.way {
                SharedWay::Own(own) => return ready!(poll_own(own, cx))?.poll_shutdown(cx),
                SharedWay::Links if this.begun.is_some() && !this.mailbox.has_ended() => {
                    // A whole command that waits is carried out, as the client has sent it.
                    this.mailbox.register(cx);
                    this.take(&[]);
                    match this.way {
                        SharedWay::Links if this.waits => return Poll::Pending,
                        SharedWay::Links => this.begun = None,
                        _ => {}
                    }
                }
                _ => {
                    this.is_shut = true;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl SharedPart for SharedUpstream {
    fn poll_settled(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.mailbox.drain();
        self.mailbox.register(cx);
        if let Some(link) = &self.link {
            link.look(&self.mailbox);
        }
        if self.is_settled() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn may_block(&self) -> bool {
        self.blocking.is_owed(self.mailbox.owed())
    }

    fn blocks(&self) -> bool {
        self.blocking.is_next(self.mailbox.owed()) && self.mailbox.held().0 == 0
    }

    fn is_shared(&self) -> bool {
        !matches!(self.way, SharedWay::Own(_))
    }

    fn gave_up_reader(&self, cx: &Context<'_>) -> bool {
        self.mailbox.is_given_up(cx)
    }

    fn needs_replies(&self) -> bool {
        self.mailbox.is_hurried()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::encode;

    #[test]
    fn a_command_is_named_and_nothing_else_that_a_client_sends() {
        let long = "X".repeat(LONGEST_NAME + 1);
        for (words, name) in [
            (&["multi", "secret"][..], "MULTI"),
            (&["Client", "no-evict", "on"], "CLIENT NO-EVICT"),
            (&["CLIENT", "a b"], "CLIENT"),
            (&["json.set", "key"], "JSON.SET"),
            (&["5f0c2f1d", "key"], ""),
            (&["two words"], ""),
            (&[&long], ""),
        ] {
            let mut bytes = Vec::new();
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            encode::command(&mut bytes, &words);
            assert_eq!(name_of(&bytes), name);
        }
        for (bytes, name) in [
            (&b"AUTH secret\r\n"[..], ""),
            (b"\x16\x03\x01", ""),
            (b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$70000\r\nx", "SET"),
            (b"*1\r\n$5\r\nMUL", ""),
        ] {
            assert_eq!(name_of(bytes), name, "{bytes:?}");
        }
    }
}
