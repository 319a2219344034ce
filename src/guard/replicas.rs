//! The replicas of the data node that must acknowledge what it is sent: the fence of a guard's lock
//! and, by choice, each guarded write.
//!
//! A replica that is promoted without the last fence would accept a write of the earlier holder. WAIT
//! follows what is to be acknowledged on the same connection: Redis counts the replicas that have all
//! that this connection has written.

use std::time::Duration;

use crate::{
    config::{GuardsConfig, WaitAt},
    resp::{encode, number},
};

/// How many replicas must acknowledge, and how long they may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replicas {
    count: usize,
    pub(crate) timeout: Duration,
    /// Whether guarded writes must be acknowledged too.
    pub(crate) at_writes: bool,
}

/// The reason why an acknowledgement is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unacknowledged {
    /// Too few replicas have acknowledged: this many.
    TooFew(u64),
    /// The data node refuses WAIT, with this error.
    Refused(Vec<u8>),
}

impl Replicas {
    /// Returns the replicas that this configuration names, or `None` if none must acknowledge.
    pub(super) fn of(config: &GuardsConfig) -> Option<Replicas> {
        let GuardsConfig { replicas: count, replica_timeout: timeout, wait_at, .. } = *config;
        let at_writes = wait_at == WaitAt::Write;
        (count > 0).then_some(Replicas { count, timeout, at_writes })
    }

    /// Appends WAIT, which Redis answers at the latest once the lock's time `left` is over. The client's
    /// library needs a limit too, as Redis answers nothing else on the connection meanwhile.
    pub(crate) fn ask(&self, out: &mut Vec<u8>, left: Option<Duration>) {
        let (count, most_ms) = self.wait(left);
        encode::array(out, 3);
        encode::bulk(out, b"WAIT");
        encode::bulk_number(out, count);
        encode::bulk_number(out, most_ms);
    }

    /// Returns the arguments of WAIT: the number of replicas, and the longest wait in ms.
    pub(crate) fn wait(&self, left: Option<Duration>) -> (u64, u64) {
        let timeout = u64::try_from(self.patience(left).as_millis()).unwrap_or(u64::MAX);
        // WAIT 0 would wait for ever.
        (self.count as u64, timeout.max(1))
    }

    /// Returns how long replicas may take, for a lock that is held for `left`.
    fn patience(&self, left: Option<Duration>) -> Duration {
        left.map_or(self.timeout, |left| left.min(self.timeout))
    }

    /// Reads the reply to WAIT.
    ///
    /// # Errors
    /// That too few replicas have acknowledged, or that the data node refuses.
    pub(crate) fn read(&self, reply: &[u8]) -> Result<(), Unacknowledged> {
        if let Some(error) = reply.strip_prefix(b"-") {
            return Err(Unacknowledged::Refused(error.trim_ascii_end().to_vec()));
        }
        let count = reply.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b"\r\n"));
        let count = count.and_then(number::integer).and_then(|count| u64::try_from(count).ok());
        self.are_enough(count.unwrap_or_default())
    }

    /// Compares how many have acknowledged with how many must.
    ///
    /// # Errors
    /// That too few have.
    pub(crate) fn are_enough(&self, count: u64) -> Result<(), Unacknowledged> {
        match count {
            count if count >= self.count as u64 => Ok(()),
            count => Err(Unacknowledged::TooFew(count)),
        }
    }

    /// Returns the error for a fence that does not count as announced, with the time that replicas had
    /// for it. Too few replicas have the code of Redis where `min-replicas-to-write` is not met; a refused
    /// WAIT has the data node's code, or READONLY.
    pub(crate) fn refuse_fence(&self, why: &Unacknowledged, left: Option<Duration>) -> Vec<u8> {
        match why {
            Unacknowledged::TooFew(count) => {
                let (wanted, timeout) = (self.count, self.patience(left));
                let timeout =
                    Duration::from_millis(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
                format!(
                    "NOREPLICAS {count} of {wanted} replicas have acknowledged the lock's fence within \
                     {timeout:?} (guards.replicas), try again"
                )
                .into_bytes()
            }
            Unacknowledged::Refused(error) => refused(error),
        }
    }

    /// Returns the error for a write that was made, but may be lost in a failover. Its code is none of
    /// Redis's: with NOREPLICAS of Redis nothing is written.
    pub(crate) fn warn_of_write(&self, why: &Unacknowledged) -> Vec<u8> {
        let Replicas { count: wanted, timeout, .. } = self;
        let why = match why {
            Unacknowledged::TooFew(count) => format!(
                "{count} of {wanted} replicas have acknowledged it within {timeout:?} (guards.replicas)"
            ),
            Unacknowledged::Refused(error) => String::from_utf8_lossy(&refused(error)).into_owned(),
        };
        format!("UNREPLICATED it was carried out, but may be lost in a failover: {why}")
            .into_bytes()
    }
}

/// Returns the error for a WAIT that the data node refuses, in its own words.
fn refused(error: &[u8]) -> Vec<u8> {
    // Redis ends a WAIT with this code when it becomes a replica.
    if error.starts_with(b"UNBLOCKED") {
        return b"READONLY the data node became a replica before replicas had acknowledged it \
                 (guards.replicas), try again"
            .to_vec();
    }
    let end = memchr::memchr(b' ', error).unwrap_or(error.len());
    let (code, text) = error.split_at(end);
    [code, b" guards.replicas needs WAIT: ", text.trim_ascii_start()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Replicas {
        let timeout = Duration::from_millis(100);
        Replicas { count: 2, timeout, at_writes: false }
    }

    #[test]
    fn nobody_is_waited_for_longer_than_the_lock_is_held() {
        let wait = |left| {
            let mut out = Vec::new();
            two().ask(&mut out, left);
            String::from_utf8(out).unwrap()
        };
        let of = |ms: &str| format!("*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n${}\r\n{ms}\r\n", ms.len());
        assert_eq!(wait(None), of("100"));
        assert_eq!(wait(Some(Duration::from_secs(1))), of("100"));
        assert_eq!(wait(Some(Duration::from_millis(30))), of("30"));
        assert_eq!(wait(Some(Duration::ZERO)), of("1"), "0 is for ever");
    }

    #[test]
    fn a_reply_that_does_not_say_enough_says_too_few() {
        for enough in [":2\r\n", ":3\r\n"] {
            assert_eq!(two().read(enough.as_bytes()), Ok(()));
        }
        for (few, count) in
            [(":1\r\n", 1), (":0\r\n", 0), (":-2\r\n", 0), ("+OK\r\n", 0), ("$1\r\n2\r\n", 0)]
        {
            assert_eq!(two().read(few.as_bytes()), Err(Unacknowledged::TooFew(count)), "{few}");
        }
        let refused = two().read(b"-NOPERM no 'wait'\r\n").unwrap_err();
        let told = String::from_utf8(two().refuse_fence(&refused, None)).unwrap();
        assert_eq!(told, "NOPERM guards.replicas needs WAIT: no 'wait'");
        let ended = b"-UNBLOCKED force unblock from blocking operation, instance state changed\r\n";
        let told = two().refuse_fence(&two().read(ended).unwrap_err(), None);
        assert!(told.starts_with(b"READONLY the data node became a replica"));
        let short = Some(Duration::from_micros(30_400));
        let told = two().refuse_fence(&Unacknowledged::TooFew(1), short);
        let told = String::from_utf8(told).unwrap();
        assert!(told.contains(" 1 of 2 replicas") && told.contains(" within 30ms "), "{told}");
    }
}
