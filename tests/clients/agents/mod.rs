//! Unchanged client libraries; a scenario tells each what to send.
//!
//! The libraries of Python and Node.js run in processes of their own, by the scripts beside this file; redis-rs runs
//! here.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
};

use bb8_redis::{
    RedisConnectionManager,
    bb8::Pool,
    redis::{self, Value, aio::ConnectionLike, aio::MultiplexedConnection},
};
use serde_yaml::Value as Json;

use super::file;
use crate::support::{LIMIT, Reply};

/// The actions that a scenario can have a library do, from several threads at once.
pub(crate) trait Library: Sync {
    /// The library's name, which is part of the keys.
    fn name(&self) -> &'static str;
    /// Makes a client with default settings: a pool if the library has one and `pool` is set.
    fn open(&self, client: &str, port: u16, pool: bool);
    /// Sends one command.
    fn call(&self, client: &str, words: &[&str]) -> Reply;
    /// Sends several commands by the library's pipeline.
    fn pipe(&self, client: &str, commands: &[&[&str]]) -> Vec<Reply>;
}

/// All libraries, started.
pub(crate) fn libraries() -> Vec<Box<dyn Library>> {
    let python = file(".venv/bin/python").display().to_string();
    vec![
        Box::new(Script::start("redis-py", &python, "redis_py.py")),
        Box::new(Script::start("redis-py-asyncio", &python, "redis_py_asyncio.py")),
        Box::new(Script::start("ioredis", "node", "ioredis.js")),
        Box::new(Script::start("node-redis", "node", "node_redis.js")),
        Box::new(RedisRs::start()),
    ]
}

type Waiting = Arc<Mutex<HashMap<usize, Sender<Vec<Reply>>>>>;

struct Script {
    name: &'static str,
    child: Child,
    input: Mutex<ChildStdin>,
    waiting: Waiting,
    next: AtomicUsize,
}

impl Script {
    fn start(name: &'static str, program: &str, script: &str) -> Script {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", program])
            .arg(file("agents").join(script))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = Mutex::new(child.stdin.take().unwrap());
        let output = BufReader::new(child.stdout.take().unwrap());
        let waiting = Waiting::default();
        let answered = Arc::clone(&waiting);
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let answer: Json = serde_yaml::from_str(&line).unwrap();
                let id = answer["id"].as_u64().unwrap() as usize;
                let Reply::Array(replies) = reply(&answer["replies"]) else { panic!("{line}") };
                // The thread that asked may have given up.
                let _ = answered.lock().unwrap().remove(&id).unwrap().send(replies);
            }
        });
        Script { name, child, input, waiting, next: AtomicUsize::new(0) }
    }

    /// Sends a request and returns the replies. Words of ASCII look in JSON as Rust shows them.
    fn ask(&self, request: &str) -> Vec<Reply> {
        let (sender, answer) = channel();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().unwrap().insert(id, sender);
        writeln!(self.input.lock().unwrap(), "{{\"id\": {id}, {request}}}").unwrap();
        answer.recv_timeout(2 * LIMIT).unwrap_or_else(|_| panic!("{}: no answer", self.name))
    }
}

impl Library for Script {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, client: &str, port: u16, pool: bool) {
        let what = if pool { "pool" } else { "open" };
        self.ask(&format!("\"do\": \"{what}\", \"client\": {client:?}, \"port\": {port}"));
    }

    fn call(&self, client: &str, words: &[&str]) -> Reply {
        let request =
            format!("\"do\": \"call\", \"client\": {client:?}, \"commands\": [{words:?}]");
        self.ask(&request).remove(0)
    }

    fn pipe(&self, client: &str, commands: &[&[&str]]) -> Vec<Reply> {
        self.ask(&format!("\"do\": \"pipe\", \"client\": {client:?}, \"commands\": {commands:?}"))
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a reply as an agent wrote it.
fn reply(json: &Json) -> Reply {
    match json {
        Json::Null => Reply::Null,
        Json::Bool(_) => Reply::ok(),
        Json::Number(number) => Reply::Int(number.as_i64().unwrap()),
        Json::String(text) if text == "OK" => Reply::ok(),
        Json::String(text) => Reply::bulk(text),
        Json::Sequence(all) => Reply::Array(all.iter().map(reply).collect()),
        other => Reply::Error(other["error"].as_str().unwrap().to_owned()),
    }
}

struct RedisRs {
    runtime: tokio::runtime::Runtime,
    clients: Mutex<HashMap<String, Kind>>,
}

#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "a few of them")]
enum Kind {
    /// One connection for all uses. It never reconnects: its user makes another.
    One(redis::Client, Option<MultiplexedConnection>),
    Pool(Pool<RedisConnectionManager>),
}

impl RedisRs {
    fn start() -> RedisRs {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        RedisRs { runtime, clients: Mutex::default() }
    }

    async fn send(
        &self,
        client: &str,
        commands: &[&[&str]],
        alone: bool,
    ) -> Result<Vec<Value>, String> {
        let kind = self.clients.lock().unwrap()[client].clone();
        let mut pipe = redis::pipe();
        for words in commands {
            pipe.cmd(words[0]).arg(&words[1..]);
        }
        let send = async |connection: &mut MultiplexedConnection| {
            if alone {
                let command = pipe.cmd_iter().next().unwrap();
                return connection.req_packed_command(command).await.map(|reply| vec![reply]);
            }
            connection.req_packed_commands(&pipe, 0, commands.len()).await
        };
        match kind {
            Kind::Pool(pool) => {
                let mut connection = pool.get().await.map_err(|error| error.to_string())?;
                send(&mut connection).await.map_err(|error| error.to_string())
            }
            Kind::One(maker, connection) => {
                let mut connection = match connection {
                    Some(connection) => connection,
                    None => maker
                        .get_multiplexed_async_connection()
                        .await
                        .map_err(|error| error.to_string())?,
                };
                let replies = send(&mut connection).await;
                let ended = replies.as_ref().is_err_and(|error| error.is_unrecoverable_error());
                let kept = (!ended).then_some(connection);
                self.clients.lock().unwrap().insert(client.to_owned(), Kind::One(maker, kept));
                replies.map_err(|error| error.to_string())
            }
        }
    }

    fn replies(&self, client: &str, commands: &[&[&str]], alone: bool) -> Vec<Reply> {
        match self.runtime.block_on(self.send(client, commands, alone)) {
            Ok(replies) => replies.into_iter().map(from_value).collect(),
            Err(error) => vec![Reply::Error(error); commands.len()],
        }
    }
}

impl Library for RedisRs {
    fn name(&self) -> &'static str {
        "redis-rs"
    }

    fn open(&self, client: &str, port: u16, pool: bool) {
        let url = format!("redis://127.0.0.1:{port}");
        let kind = if pool {
            let manager = RedisConnectionManager::new(url).unwrap();
            Kind::Pool(self.runtime.block_on(Pool::builder().build(manager)).unwrap())
        } else {
            Kind::One(redis::Client::open(url).unwrap(), None)
        };
        self.clients.lock().unwrap().insert(client.to_owned(), kind);
    }

    fn call(&self, client: &str, words: &[&str]) -> Reply {
        self.replies(client, &[words], true).remove(0)
    }

    fn pipe(&self, client: &str, commands: &[&[&str]]) -> Vec<Reply> {
        self.replies(client, commands, false)
    }
}

/// Converts a reply of redis-rs.
pub(crate) fn from_value(value: Value) -> Reply {
    match value {
        Value::Nil => Reply::Null,
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => Reply::Bulk(bytes),
        Value::SimpleString(text) => Reply::simple(&text),
        Value::Okay => Reply::ok(),
        Value::Array(all) => Reply::Array(all.into_iter().map(from_value).collect()),
        Value::ServerError(error) => Reply::Error(error.to_string()),
        other => Reply::Other(format!("{other:?}")),
    }
}
