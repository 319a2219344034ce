//! Which master a majority of the Sentinels names. Knows nothing of connections.

use std::fmt;

use super::sentinel_trouble::SentinelTrouble;
use crate::clock::Instant;

/// Where a master listens, in a Sentinel's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MasterAddress {
    /// Name or address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The election that made it the master (the Sentinel's `config-epoch`). Each election has another number, even
    /// if it elects a Redis again that has not heard of the master in between. `None`: not asked for.
    pub(crate) election: Option<u64>,
}

impl fmt::Display for MasterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port)?,
            false => write!(f, "{}:{}", self.host, self.port)?,
        }
        match self.election {
            Some(election) => write!(f, " (config-epoch {election})"),
            None => Ok(()),
        }
    }
}

/// A master that a majority of all Sentinels names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedMaster {
    pub(crate) address: MasterAddress,
    /// A majority has named this master in answers to questions that were sent at this time or later.
    pub(crate) asked: Instant,
}

/// The last answer of one Sentinel: the master that it names and when it was asked, or what is wrong
/// with it. `None`: it has not answered yet.
pub(super) type LastAnswer = Option<Result<(MasterAddress, Instant), SentinelTrouble>>;

/// Returns the number of Sentinels that are a majority of `all`.
pub(super) fn majority_of(all: usize) -> usize {
    all / 2 + 1
}

/// Finds the master that a majority of all Sentinels names, those that do not answer included.
pub(super) fn named(answers: &[LastAnswer]) -> Option<NamedMaster> {
    let majority = majority_of(answers.len());
    let told = || answers.iter().flatten().flatten();
    told().find_map(|(address, _)| {
        let mut asked: Vec<Instant> =
            told().filter(|(other, _)| other == address).map(|(_, asked)| *asked).collect();
        asked.sort_by(|a, b| b.cmp(a));
        let asked = *asked.get(majority - 1)?;
        Some(NamedMaster { address: address.clone(), asked })
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::sentinel_trouble::SentinelFault, *};

    fn address(host: &str) -> MasterAddress {
        MasterAddress { host: host.into(), port: 6379, election: None }
    }

    fn silent() -> LastAnswer {
        Some(Err(SentinelTrouble::new(SentinelFault::Unreachable, "")))
    }

    #[tokio::test]
    async fn a_majority_of_all_must_name_the_same_master() {
        let now = Instant::now();
        let names = |host: &str| Some(Ok((address(host), now)));
        let host = |answers: &[LastAnswer]| named(answers).map(|named| named.address.host);
        assert_eq!(host(&[names("a")]), Some("a".into()));
        assert_eq!(host(&[names("a"), names("b"), names("b")]), Some("b".into()));
        assert_eq!(host(&[names("a"), names("b"), silent()]), None);
        assert_eq!(host(&[names("a"), silent(), None]), None, "one of three");
        assert_eq!(host(&[names("a"), names("a"), None]), Some("a".into()));
        assert_eq!(host(&[names("a"), names("a"), names("b"), names("b")]), None, "half");
        assert_eq!(host(&[names("a"), silent()]), None, "one of two");
        assert_eq!(host(&[]), None);
        let elected = |election| {
            let address = MasterAddress { election: Some(election), ..address("a") };
            Some(Ok((address, now)))
        };
        assert_eq!(host(&[elected(0), elected(2), elected(0)]), Some("a".into()));
        assert_eq!(host(&[elected(0), elected(2), silent()]), None, "by another election");
    }

    #[tokio::test]
    async fn it_counts_from_the_oldest_question_that_the_majority_needs() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let names = |host: &str, seconds| Some(Ok((address(host), at(seconds))));
        let asked = |answers: &[LastAnswer]| named(answers).map(|named| named.asked);
        assert_eq!(asked(&[names("a", 1), names("a", 3), names("a", 2)]), Some(at(2)));
        assert_eq!(asked(&[names("a", 1), names("a", 3), silent()]), Some(at(1)));
        assert_eq!(asked(&[names("a", 1), names("a", 3), names("b", 9)]), Some(at(1)));
    }
}
