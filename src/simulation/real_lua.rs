//! Lockgate's own Lua scripts, run by a real Lua as Redis runs them.

use std::{cell::RefCell, collections::BTreeMap};

use mlua::{Lua, MultiValue, Table, Value};

use super::memory::{Memory, RedisReply};
use crate::resp::encode;

/// Runs a script on a node's memory and appends its reply.
pub(super) fn run(
    memory: &mut Memory,
    body: &str,
    keys: &[Vec<u8>],
    arguments: &[Vec<u8>],
    out: &mut Vec<u8>,
) {
    MEMORY.set(std::mem::take(memory));
    LUA.with(|lua| lua.run(body, keys, arguments, out));
    *memory = MEMORY.take();
}

thread_local! {
    static LUA: Scripts = Scripts::new();
    /// The memory of the node whose script runs.
    static MEMORY: RefCell<Memory> = RefCell::default();
}

struct Scripts {
    lua: Lua,
    /// Ordered: to compare two scripts costs less than to hash one.
    by_body: RefCell<BTreeMap<String, mlua::Function>>,
}

impl Scripts {
    fn new() -> Scripts {
        let lua = Lua::new();
        let call = |lua: &Lua, words: MultiValue| match called(&words) {
            RedisReply::Error(text) => panic!("{text}"),
            said => in_lua(lua, said),
        };
        let pcall = |lua: &Lua, words: MultiValue| in_lua(lua, called(&words));
        let status = |field: &'static str| {
            move |lua: &Lua, text: mlua::LuaString| lua.create_table_from([(field, text)])
        };
        let redis = lua.create_table().unwrap();
        redis.set("error_reply", lua.create_function(status("err")).unwrap()).unwrap();
        redis.set("status_reply", lua.create_function(status("ok")).unwrap()).unwrap();
        redis.set("call", lua.create_function(call).unwrap()).unwrap();
        redis.set("pcall", lua.create_function(pcall).unwrap()).unwrap();
        lua.globals().set("redis", redis).unwrap();
        Scripts { lua, by_body: RefCell::default() }
    }

    /// Runs a script and appends its reply, converted from what Lua returns as Redis does.
    fn run(&self, body: &str, keys: &[Vec<u8>], arguments: &[Vec<u8>], out: &mut Vec<u8>) {
        let strings = |all: &[Vec<u8>]| -> Table {
            let strings = all.iter().map(|bytes| self.lua.create_string(bytes).unwrap());
            self.lua.create_sequence_from(strings).unwrap()
        };
        self.lua.globals().set("KEYS", strings(keys)).unwrap();
        self.lua.globals().set("ARGV", strings(arguments)).unwrap();
        let mut known = self.by_body.borrow_mut();
        if !known.contains_key(body) {
            known.insert(body.to_owned(), self.lua.load(body).into_function().unwrap());
        }
        reply(&known[body].call(()).unwrap(), out);
    }
}

/// Carries out one call on the memory of the node whose script runs.
fn called(words: &MultiValue) -> RedisReply {
    let words: Vec<Vec<u8>> = words.iter().map(text).collect();
    MEMORY.with_borrow_mut(|memory| memory.call(&words))
}

/// Returns a reply as a script gets it.
fn in_lua(lua: &Lua, said: RedisReply) -> mlua::Result<Value> {
    match said {
        RedisReply::Nil => Ok(Value::Boolean(false)),
        RedisReply::Ok => Ok(Value::Table(lua.create_table_from([("ok", "OK")])?)),
        RedisReply::Int(number) => Ok(Value::Number(number as f64)),
        RedisReply::Bulk(bytes) => Ok(Value::String(lua.create_string(bytes)?)),
        RedisReply::Many(all) => {
            let table = lua.create_table()?;
            for value in all {
                table.push(match value {
                    Some(bytes) => Value::String(lua.create_string(bytes)?),
                    None => Value::Boolean(false),
                })?;
            }
            Ok(Value::Table(table))
        }
        RedisReply::Scanned(next, keys) => {
            let told = lua.create_table()?;
            for key in keys {
                told.push(lua.create_string(key)?)?;
            }
            let table = lua.create_table()?;
            table.push(next.to_string())?;
            table.push(told)?;
            Ok(Value::Table(table))
        }
        RedisReply::Listeners => {
            let table = lua.create_table()?;
            table.push("channel")?;
            table.push(0)?;
            Ok(Value::Table(table))
        }
        RedisReply::Error(text) => Ok(Value::Table(lua.create_table_from([("err", text)])?)),
    }
}

/// Appends the reply that Redis makes of a Lua value.
fn reply(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::String(string) => encode::bulk(out, &string.as_bytes()),
        // Redis cuts off the fraction of a number.
        Value::Integer(number) => encode::integer(out, *number),
        Value::Number(number) => encode::integer(out, *number as i64),
        Value::Boolean(false) => out.extend_from_slice(b"$-1\r\n"),
        Value::Table(table) => {
            let field = |name: &str| table.get::<Option<String>>(name).unwrap();
            if let Some(text) = field("ok") {
                return encode::simple(out, &text);
            }
            if let Some(text) = field("err") {
                return encode::error(out, &format!("ERR {text}"));
            }
            let all: Vec<Value> = table.sequence_values().map(Result::unwrap).collect();
            encode::array(out, all.len());
            all.iter().for_each(|one| reply(one, out));
        }
        other => panic!("{other:?}"),
    }
}

/// Returns an argument as `redis.call` takes it: a number is written as Lua writes it.
fn text(value: &Value) -> Vec<u8> {
    match value {
        Value::String(string) => string.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => number.to_string().into_bytes(),
        other => panic!("{other:?}"),
    }
}
