//! Asks the data node for its commands, and whether its history has changed, over a connection of
//! the proxy's own.
//!
//! The connection stays open, as its end shows that the data node may be another Redis now: from
//! then on nothing counts as known until the commands have been read again.

use std::{sync::Arc, time::Duration};

use arc_swap::{ArcSwapOption, Guard};
use bb8_redis::redis::{self, RedisError, Value, aio::MultiplexedConnection};
use thiserror::Error;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};
use tracing::{info, warn};

use super::{
    asked::AskedCommand,
    catalog::{self, FirstBytes, Table},
    history::{self, DataHistory, SeenHistory},
    written_keys::{self, Positions},
};
use crate::{data::DataNode, net::redis_client};

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(1);
/// The shortest time from one connection to the next: one that lasted longer is replaced at once.
const PAUSE: Duration = Duration::from_millis(200);
/// The shortest time from one reading of all commands to the next: clients choose the names that
/// cause one, and COMMAND is expensive.
const EVERY: Duration = Duration::from_millis(200);
/// The most questions under way; a client waits for each.
const MAX_QUESTIONS: usize = 1024;
/// The most questions under way about a command's keys, for which the command is copied; others
/// wait.
const MAX_ASKED: usize = 16;
/// How long a client waits for all commands to be read again. An earlier reading, and the pause
/// after it, may have to end before the reading that counts begins.
const AGAIN_LIMIT: Duration = Duration::from_secs(5);
/// Longest name that is asked about, in bytes: clients choose it.
pub(super) const LONGEST_NAME: usize = 256;
/// Errors of COMMAND GETKEYS about a command that has no keys, or that Redis will not carry out.
const NO_KEYS: [&str; 4] = [
    "The command has no key arguments",
    "Invalid command specified",
    "Invalid number of arguments specified for command",
    "Invalid arguments specified for command",
];

/// The data node's commands, as far as they are known.
pub(crate) struct Catalog {
    table: Arc<ArcSwapOption<Table>>,
    questions: mpsc::Sender<CatalogQuestion>,
    /// Places for questions about keys.
    places: Semaphore,
}

/// The keys that a command writes.
type Keys = Vec<Vec<u8>>;

enum CatalogQuestion {
    /// Asks which keys this command writes.
    Keys(AskedCommand, oneshot::Sender<Result<Keys, AskError>>),
    /// Requests a new reading of all commands, and of the one with this name if there is any.
    Again(Vec<u8>, oneshot::Sender<()>),
}

/// The reason why the data node could not be asked.
#[derive(Debug, Error)]
pub(crate) enum AskError {
    /// The data node refused.
    #[error("{0}")]
    Redis(#[from] RedisError),
    /// There is no connection, or no answer in time.
    #[error("the data node does not answer")]
    Silent,
    /// The answer is not one that Redis gives to such a question.
    #[error("the data node's answer cannot be read")]
    Unreadable,
}

impl Catalog {
    /// Keeps asking the data node from now on, on `runtime`.
    pub(crate) fn start(
        data: &Arc<DataNode>,
        first_bytes: FirstBytes,
        history: Arc<DataHistory>,
        runtime: &Handle,
    ) -> Catalog {
        let table = Arc::new(ArcSwapOption::empty());
        let (questions, asked) = mpsc::channel(MAX_QUESTIONS);
        let (data, kept) = (data.clone(), table.clone());
        runtime.spawn(async move { keep(&data, first_bytes, &kept, &history, asked).await });
        Catalog { table, questions, places: Semaphore::new(MAX_ASKED) }
    }

    /// Makes the catalog of a data node that has a few commands only, and answers no questions.
    #[cfg(test)]
    pub(super) fn of_few_commands(first_bytes: FirstBytes) -> Catalog {
        use super::catalog::Writes::{First, Nothing};
        let commands = [
            ("SET", First),
            ("INCR", First),
            ("INCRBY", First),
            ("GETDEL", First),
            ("LPUSH", First),
            ("GET", Nothing),
            ("ECHO", Nothing),
            ("SELECT", Nothing),
            ("PING", Nothing),
            ("EXISTS", Nothing),
            ("PTTL", Nothing),
            ("SCRIPT", Nothing),
            ("CLUSTER", Nothing),
            // The tests' scripts write no guarded key.
            ("EVAL", Nothing),
            ("EVALSHA", Nothing),
        ];
        let commands = commands.map(|(name, writes)| (name.as_bytes().to_vec(), writes));
        let table = Table::new(commands.into(), first_bytes);
        let questions = mpsc::channel(1).0;
        let places = Semaphore::new(MAX_ASKED);
        Catalog { table: Arc::new(ArcSwapOption::from_pointee(table)), questions, places }
    }

    /// Returns the commands, or `None` while they are not known.
    pub(crate) fn table(&self) -> Guard<Option<Arc<Table>>> {
        self.table.load()
    }

    /// Returns the keys that this command writes according to the data node, and those that its
    /// options may make it write.
    ///
    /// # Errors
    /// If the data node cannot be asked.
    pub(crate) async fn keys(&self, command: AskedCommand) -> Result<Keys, AskError> {
        let asking = async {
            let Ok(_place) = self.places.acquire().await else { return Err(AskError::Silent) };
            let mut may = by_options(&command);
            let (answer, answered) = oneshot::channel();
            let asked = self.questions.try_send(CatalogQuestion::Keys(command, answer));
            asked.map_err(|_| AskError::Silent)?;
            may.extend(answered.await.map_err(|_| AskError::Silent)??);
            Ok(may)
        };
        timeout(LIMIT, asking).await.unwrap_or(Err(AskError::Silent))
    }

    /// Waits for a new reading of all commands, begun after this call, with the one of this name if
    /// there is any. Returns `false` if they could not be read in time: whether there is such a
    /// command is then unknown.
    pub(crate) async fn again(&self, name: Vec<u8>) -> bool {
        if name.len() > LONGEST_NAME {
            return false;
        }
        let (answer, answered) = oneshot::channel();
        self.questions.try_send(CatalogQuestion::Again(name, answer)).is_ok()
            && matches!(timeout(AGAIN_LIMIT, answered).await, Ok(Ok(())))
    }
}

/// Returns the words that a command's options may make it write.
fn by_options(command: &AskedCommand) -> Keys {
    let (words, mut positions) = (command.words(), Positions::new());
    written_keys::behind_options(&words, &mut positions);
    positions.iter().filter_map(|at| words.get(*at)).map(|word| word.to_vec()).collect()
}

/// What clients wait for until all commands have been read again. It outlasts a connection over which that fails.
#[derive(Default)]
struct Awaited {
    /// Names that COMMAND does not list, because `rename-command` made them.
    others: Vec<Vec<u8>>,
    answers: Vec<oneshot::Sender<()>>,
}

impl Awaited {
    /// Notes that a client waits for the command with this name. If `table` has it by now, the client has asked while
    /// nothing was known, and waits for no other reading.
    fn note(&mut self, name: &[u8], answer: oneshot::Sender<()>, table: &ArcSwapOption<Table>) {
        if table.load().as_ref().is_some_and(|known| known.get(name).is_some()) {
            let _: Result<(), ()> = answer.send(());
            return;
        }
        // Dropping the question answers that nothing was read.
        if self.answers.len() >= MAX_QUESTIONS {
            return;
        }
        let name = name.to_ascii_uppercase();
        if !self.others.contains(&name) {
            self.others.push(name);
        }
        self.answers.push(answer);
    }

    /// Reads all commands, and tells those that wait.
    async fn read(
        &mut self,
        redis: &mut MultiplexedConnection,
        first_bytes: FirstBytes,
        table: &ArcSwapOption<Table>,
    ) -> Result<usize, AskError> {
        let known = read_commands(redis, &self.others, first_bytes).await?;
        let count = known.len();
        // Unknown names are dropped: clients choose them, so the list would grow without bound.
        self.others.retain(|name| known.get(name).is_some());
        table.store(Some(Arc::new(known)));
        for answer in self.answers.drain(..) {
            let _: Result<(), ()> = answer.send(());
        }
        Ok(count)
    }
}

async fn keep(
    data: &DataNode,
    first_bytes: FirstBytes,
    table: &ArcSwapOption<Table>,
    history: &DataHistory,
    mut questions: mpsc::Receiver<CatalogQuestion>,
) {
    let (mut told, mut changes) = (false, data.changes());
    let (mut seen, mut awaited) = (SeenHistory::default(), Awaited::default());
    while !questions.is_closed() {
        // At the start, and between two tenures, there is no data node for a moment.
        data.found(LIMIT).await;
        let asked = (&mut questions, &mut awaited);
        let begun = Instant::now();
        match follow(data, first_bytes, table, (history, &mut seen), asked).await {
            Ok(()) => told = false,
            Err(error) if !told => {
                told = true;
                warn!(%data, %error, "guards: cannot read the data node's commands; clients' commands are refused until then");
            }
            Err(_) => {}
        }
        table.store(None);
        awaited.answers.retain(|answer| !answer.is_closed());
        tokio::select! {
            () = sleep_until(begun + PAUSE) => {}
            Ok(()) = changes.changed() => {}
        }
    }
}

/// Follows one connection from its beginning to its end.
async fn follow(
    data: &DataNode,
    first_bytes: FirstBytes,
    table: &ArcSwapOption<Table>,
    (history, seen): (&DataHistory, &mut SeenHistory),
    (questions, awaited): (&mut mpsc::Receiver<CatalogQuestion>, &mut Awaited),
) -> Result<(), AskError> {
    let (tenure, mut connection) = data.ask_for(redis_client::LARGE).await?;
    // Before any write passes.
    history.look(seen, &mut connection.redis).await;
    let mut looked = Instant::now();
    let mut read = looked;
    let commands = awaited.read(&mut connection.redis, first_bytes, table).await?;
    info!(data = %tenure.url, commands, "guards: the data node's commands are known");
    loop {
        let again = sleep_until(read + EVERY);
        tokio::select! {
            // What ends this comes first: a question for the next data node must not go to this one.
            biased;
            () = connection.closed() => return Ok(()),
            () = tenure.ended() => return Ok(()),
            () = sleep_until(looked + history::LOOK_EVERY) => {
                history.look(seen, &mut connection.redis).await;
                looked = Instant::now();
            }
            () = again, if !awaited.answers.is_empty() => {
                read = Instant::now();
                awaited.read(&mut connection.redis, first_bytes, table).await?;
            }
            question = questions.recv() => match question {
                None => return Ok(()),
                Some(CatalogQuestion::Again(name, answer)) => awaited.note(&name, answer, table),
                Some(CatalogQuestion::Keys(command, answer)) => {
                    let mut redis = connection.redis.clone();
                    tokio::spawn(async move {
                        let _ = answer.send(written(&mut redis, &command).await);
                    });
                }
            },
        }
    }
}

/// Asks for the names of all commands, and then for the facts about each.
async fn read_commands(
    redis: &mut MultiplexedConnection,
    others: &[Vec<u8>],
    first_bytes: FirstBytes,
) -> Result<Table, AskError> {
    let command = redis::cmd("COMMAND");
    let reply = timeout(LIMIT, command.query_async::<Value>(redis)).await;
    let mut names = catalog::names(&reply.map_err(|_| AskError::Silent)??);
    names.extend_from_slice(others);
    let mut info = redis::cmd("COMMAND");
    info.arg("INFO").arg(&names);
    let reply = timeout(LIMIT, info.query_async::<Value>(redis)).await;
    Ok(Table::read(&names, &reply.map_err(|_| AskError::Silent)??, first_bytes))
}

/// Asks for the keys that a command writes. Redis 7 tells of each key whether it is written; before
/// that, all keys count as written.
async fn written(
    redis: &mut MultiplexedConnection,
    command: &AskedCommand,
) -> Result<Keys, AskError> {
    let words = command.words();
    let [name, _, ..] = words[..] else { return Ok(Keys::new()) };
    let mut question = redis::cmd("COMMAND");
    question.arg("GETKEYSANDFLAGS").arg(&words[..]);
    match timeout(LIMIT, question.query_async::<Value>(redis)).await {
        Err(_) => return Err(AskError::Silent),
        Ok(Ok(reply)) => return catalog::written_keys(name, &reply).ok_or(AskError::Unreadable),
        Ok(Err(_)) => {}
    }
    let mut question = redis::cmd("COMMAND");
    question.arg("GETKEYS").arg(&words[..]);
    let reply = timeout(LIMIT, question.query_async::<Value>(redis)).await;
    match reply.map_err(|_| AskError::Silent)? {
        Ok(reply) => catalog::keys(&reply).ok_or(AskError::Unreadable),
        Err(error) if tells_of_no_keys(&error) => Ok(Keys::new()),
        Err(error) => Err(error.into()),
    }
}

/// Whether this error of COMMAND GETKEYS means that the command has no keys, or that Redis refuses its
/// words. Any other error leaves open which keys the command writes.
fn tells_of_no_keys(error: &RedisError) -> bool {
    error.code() == Some("ERR") && error.detail().is_some_and(|text| NO_KEYS.contains(&text))
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    fn catalog() -> (Catalog, mpsc::Receiver<CatalogQuestion>) {
        let (questions, asked) = mpsc::channel(1);
        let places = Semaphore::new(MAX_ASKED);
        (Catalog { table: Arc::new(ArcSwapOption::empty()), questions, places }, asked)
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_read_again_is_never_told_to_have_been() {
        let (catalog, mut asked) = catalog();
        let (full, (), long) = tokio::join!(
            async {
                // The first question takes the only place.
                tokio::join!(catalog.again(b"a".to_vec()), catalog.again(b"b".to_vec()))
            },
            sleep(AGAIN_LIMIT),
            catalog.again(vec![b'x'; LONGEST_NAME + 1])
        );
        assert_eq!((full, long), ((false, false), false), "late, full, too long");
        let Ok(CatalogQuestion::Again(name, _)) = asked.try_recv() else {
            panic!("nothing was asked")
        };
        assert_eq!(name, b"a");
        assert!(asked.try_recv().is_err());
    }

    #[test]
    fn only_what_redis_says_tells_of_no_keys() {
        let tells = |line: &str| {
            let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
            tells_of_no_keys(&reply.extract_error().unwrap_err())
        };
        for text in NO_KEYS {
            assert!(tells(&format!("ERR {text}")), "{text}");
        }
        for line in [
            "ERR unknown command 'COMMAND', with args beginning with: 'GETKEYS'",
            "ERR unknown subcommand 'GETKEYS'. Try COMMAND HELP.",
            "ERR",
            "ERR The command has no key arguments yet",
            "NOPERM The command has no key arguments",
            "LOADING Redis is loading the dataset in memory",
        ] {
            assert!(!tells(line), "{line}");
        }
        let unreadable =
            RedisError::from((redis::ErrorKind::Parse, "The command has no key arguments"));
        assert!(!tells_of_no_keys(&unreadable));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_that_fails_or_ends_is_told_apart() {
        let (catalog, mut asked) = catalog();
        for read in [true, false] {
            let (told, ()) = tokio::join!(catalog.again(b"a".to_vec()), async {
                let Some(CatalogQuestion::Again(_, answer)) = asked.recv().await else { return };
                if read {
                    let _: Result<(), ()> = answer.send(());
                }
            });
            assert_eq!(told, read);
        }
        drop(asked);
        assert!(!catalog.again(b"a".to_vec()).await);
    }
}
