//! Finds out whether the proxy's user may send the data node what bridged locks need.

use bb8_redis::redis::{self, RedisError, aio::MultiplexedConnection};

const TRIAL: &str = include_str!("trial.lua");

/// The commands of bridged locks: EVAL, and what the scripts send.
pub(crate) const NEEDED: [&str; 7] = ["eval", "select", "exists", "get", "set", "del", "pttl"];

/// Why locks on a key cannot be bridged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandFailure {
    /// The command's name in small letters, or `keys` where the user may not use the key at all.
    pub(crate) command: String,
    /// The data node's words.
    pub(crate) error: String,
}

impl CommandFailure {
    /// Whether the user lacks the permission.
    pub(crate) fn is_refusal(&self) -> bool {
        // In scripts some versions of Redis say it without the code, and the client library changes that.
        ["NOPERM", "no permissions", "can't run this command", "can't access"]
            .iter()
            .any(|words| self.error.contains(words))
    }
}

/// Tries on this key what the scripts of bridged locks send. Changes nothing, whichever client has the key: SET is
/// sent with a syntax error, DEL only where there is no key.
///
/// # Errors
/// If the connection fails.
pub(crate) async fn try_commands(
    redis: &mut MultiplexedConnection,
    key: &[u8],
) -> Result<Vec<CommandFailure>, RedisError> {
    let mut trial = redis::cmd("EVAL");
    trial.arg(TRIAL).arg(1).arg(key);
    match trial.query_async::<Vec<(String, String)>>(redis).await {
        Ok(failed) => {
            let failure = |(command, error)| CommandFailure { command, error };
            Ok(failed.into_iter().map(failure).collect())
        }
        Err(error) if error.is_io_error() || error.is_timeout() => Err(error),
        Err(error) => {
            let error = error.to_string();
            // The script itself did not run.
            let command = if error.contains("permissions to access") { "keys" } else { "eval" };
            Ok(vec![CommandFailure { command: command.into(), error }])
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{
        super::data_key::{FREE, KEEP, LOOK, TAKE},
        *,
    };

    #[test]
    fn the_trial_sends_what_the_scripts_send() {
        let names = |script: &'static str, call: &'static str| {
            script.split(call).skip(1).filter_map(|rest| rest.split('\'').next())
        };
        let scripts = [TAKE, KEEP, FREE, LOOK];
        let sent: BTreeSet<&str> =
            scripts.iter().flat_map(|script| names(script, "call('")).collect();
        let mut needed = BTreeSet::from(NEEDED);
        assert!(needed.remove("eval"));
        assert_eq!(sent, needed);
        let tried = ["try(nil, '", "try('WRONGTYPE', '", "try('syntax error', '"];
        let tried: BTreeSet<&str> = tried.iter().flat_map(|call| names(TRIAL, call)).collect();
        assert_eq!(tried, needed);
    }
}
