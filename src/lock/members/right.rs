//! What may be asked of a lock node: the one answer to "may it vote?".

use crate::lock::operation::{Absence, Operation};

/// What a proxy may ask of the node on a seat, of the operations that the node's marker proves. Releases, undos and
/// notes of ended claims go to every connected node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum Right {
    /// Everything: the node votes.
    Vote,
    /// The node grants nothing and keeps what it has: renewals of valid grants and put-backs count.
    Keep(Absence),
    /// A single voter that waits. No other node confirms which locks are held, so it keeps only grants that this
    /// proxy knows to be valid.
    KeepOwn(Absence),
    /// Nothing, not even renewals.
    Nothing(Absence),
}

impl Right {
    /// Returns the right of a node. `kept_from`: why it must not grant, if it must not; `confirmed`: whether the votes
    /// of the connected Redis count, by its Sentinels or its cluster; `alone`: whether it waits as the only voter.
    pub(in crate::lock) fn of(kept_from: Option<Absence>, confirmed: bool, alone: bool) -> Right {
        match kept_from {
            _ if !confirmed => Right::Nothing(kept_from.unwrap_or(Absence::Unconfirmed)),
            None => Right::Vote,
            Some(why @ Absence::Quarantined) if alone => Right::KeepOwn(why),
            Some(why) => Right::Keep(why),
        }
    }

    /// Returns why the node must not be asked this, though it is connected.
    pub(in crate::lock) fn refuses(self, operation: &Operation) -> Option<Absence> {
        let grants = operation.kind.grants();
        match self {
            Right::Vote => None,
            Right::Keep(why) => grants.then_some(why),
            Right::KeepOwn(why) => (grants || !operation.may_ask_alone()).then_some(why),
            Right::Nothing(why) => operation.kind.is_proven().then_some(why),
        }
    }

    /// Returns why the node may lack locks. Then its word that a lock is free does not count; its word that a lock is
    /// held always counts. A node that an operator has paused has every lock.
    pub(in crate::lock) fn may_lack(self) -> Option<Absence> {
        match self {
            Right::Vote | Right::Keep(Absence::Paused) => None,
            Right::Keep(why) | Right::KeepOwn(why) | Right::Nothing(why) => Some(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        key::{Key, Token},
        lock::{claim::Claim, operation::Kind},
    };

    fn operation(kind: Kind) -> Operation {
        let (key, token) = (Key::new(b"lock:", b"k"), Token::from("t"));
        Operation::new(kind, key, token, Duration::from_secs(1), Vec::new(), 1)
    }

    /// What each right refuses: grants, renewals of what nobody vouches for, renewals by the watchdog, looks, releases.
    #[test]
    fn each_state_of_a_node_has_one_right() {
        use Absence::{Jumped, Paused, Quarantined, Unconfirmed};
        let claim = Claim::NOT_STORED;
        let asked = [
            Kind::Acquire { claim, again: false },
            Kind::HandOver { claim },
            Kind::Renew,
            Kind::RenewMany,
            Kind::Heal,
            Kind::Look,
            Kind::Release,
        ];
        let states = [
            (None, true, false, "vvvvvvv", None),
            (Some(Quarantined), true, false, "--vvvvv", Some(Quarantined)),
            (Some(Quarantined), true, true, "---vvvv", Some(Quarantined)),
            (Some(Jumped), true, false, "--vvvvv", Some(Jumped)),
            (Some(Paused), true, false, "--vvvvv", None),
            (None, false, false, "------v", Some(Unconfirmed)),
            (Some(Paused), false, false, "------v", Some(Paused)),
            (Some(Quarantined), false, true, "------v", Some(Quarantined)),
        ];
        for (kept_from, confirmed, alone, may, may_lack) in states {
            let right = Right::of(kept_from, confirmed, alone);
            let is_refused = |kind| right.refuses(&operation(kind)).is_some();
            let is: String =
                asked.iter().map(|kind| if is_refused(*kind) { '-' } else { 'v' }).collect();
            assert_eq!((&*is, right.may_lack()), (may, may_lack), "{right:?}");
        }
    }
}
