//! What can be wrong with a Sentinel, and what to do about it.

use std::io;

use crate::{config::RedisUrl, metrics::labels, resp::flat};

labels! {
    /// What is wrong with a Sentinel; the label `fault` of `lockgate_sentinel_fault`.
    pub(crate) enum SentinelFault {
        /// The Sentinel cannot be reached, or does not answer in time.
        Unreachable = "unreachable",
        /// The Sentinel wants a password, or refuses the one it is given.
        Auth = "auth",
        /// What listens there is a Redis, but no Sentinel.
        NotSentinel = "not_sentinel",
        /// The Sentinel watches no master of the name.
        UnknownMaster = "unknown_master",
        /// What came is not a Sentinel's reply.
        Garbage = "garbage",
        /// The Sentinel names another master than the majority.
        Disagrees = "disagrees",
        /// The Sentinel is already listed under another name.
        Twice = "twice",
    }
}

impl SentinelFault {
    /// Returns what to do about it.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            SentinelFault::Unreachable => {
                "Is it running, is its address in sentinels right, and does a firewall stand \
                 between? A majority of all that are listed must answer."
            }
            SentinelFault::Auth => {
                "Put its user and password into sentinel_username and sentinel_password; \
                 the user needs +auth +subscribe +sentinel|get-master-addr-by-name, for a lock node \
                 +sentinel|master too, and the channel +switch-master."
            }
            SentinelFault::NotSentinel => {
                "Give the address of the Sentinel beside that Redis: port 26379, unless its file says \
                 otherwise."
            }
            SentinelFault::UnknownMaster => {
                "master must be the name behind 'sentinel monitor' in sentinel.conf."
            }
            SentinelFault::Garbage => {
                "Is another service at that address, or is TLS wanted (sentinel_tls)?"
            }
            SentinelFault::Twice => "List each Sentinel once: a majority is counted of them.",
            SentinelFault::Disagrees => {
                "For a moment that is as it should be, after a failover. Else it watches another \
                 deployment, or is cut off from the other Sentinels."
            }
        }
    }
}

/// One thing that is wrong with a Sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SentinelTrouble {
    pub(crate) fault: SentinelFault,
    /// In words for an operator, without a password.
    pub(crate) what: String,
}

impl SentinelTrouble {
    pub(super) fn new(fault: SentinelFault, what: impl Into<String>) -> SentinelTrouble {
        SentinelTrouble { fault, what: what.into() }
    }

    /// Makes the trouble of a Sentinel that is `first`, by another name.
    pub(super) fn twice(first: &RedisUrl) -> SentinelTrouble {
        let what = format!("it is the Sentinel at {first}, by another name");
        SentinelTrouble::new(SentinelFault::Twice, what)
    }

    /// Makes the trouble of a Sentinel that watches no master of this name.
    pub(super) fn unknown_master(name: &str) -> SentinelTrouble {
        let what = format!("it watches no master '{name}'");
        SentinelTrouble::new(SentinelFault::UnknownMaster, what)
    }

    /// Makes the trouble of a Sentinel that answers with an error.
    pub(super) fn of_error(error: &str) -> SentinelTrouble {
        let has = |words: &[&str]| words.iter().any(|word| error.contains(word));
        let fault = if has(&["unknown command"]) {
            let what = "it is no Sentinel: it knows no command SENTINEL";
            return SentinelTrouble::new(SentinelFault::NotSentinel, what);
        } else if has(&["NOAUTH", "WRONGPASS", "NOPERM", "DENIED", "AUTH", "password"]) {
            SentinelFault::Auth
        } else {
            SentinelFault::Garbage
        };
        // Its words may be of any length, and go to the log.
        let words: String = error.chars().filter(|c| !c.is_control()).take(200).collect();
        SentinelTrouble::new(fault, format!("it answers '{words}'"))
    }
}

impl From<io::Error> for SentinelTrouble {
    fn from(error: io::Error) -> SentinelTrouble {
        // The system's own texts would end with the error's number.
        let what = match error.kind() {
            kind if error.get_ref().is_none() && error.raw_os_error().is_some() => kind.to_string(),
            _ => error.to_string(),
        };
        SentinelTrouble::new(SentinelFault::Unreachable, what)
    }
}

impl From<flat::Garbage> for SentinelTrouble {
    fn from(_: flat::Garbage) -> SentinelTrouble {
        let what = "what it answers is not a Sentinel's reply";
        SentinelTrouble::new(SentinelFault::Garbage, what)
    }
}
