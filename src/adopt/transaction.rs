//! Recognizes StackExchange.Redis's release and extension: WATCH, GET, MULTI, one of DEL, UNLINK,
//! EXPIRE and PEXPIRE, and EXEC, all of one key.
//!
//! Other commands may stand between WATCH and MULTI, as its connection is shared; none may between
//! MULTI and EXEC.

use smallvec::smallvec;

use super::{
    finding::{AdoptLook, Found},
    idiom::Op,
    sighting::{Sighting, Sightings},
    verdict::{self, AdoptVerdict},
};

/// How far a connection's transaction has come, as its client sends it.
#[derive(Debug, Default)]
pub(crate) struct Track {
    is_in_multi: bool,
    watched: Option<Watched>,
    /// Whether keys that are not adopted are watched.
    watches_others: bool,
    /// Whether a WATCH of an adopted key came that would be refused.
    has_lost_watch: bool,
}

#[derive(Debug)]
struct Watched {
    watch: Found,
    /// Whether a GET of that key came.
    is_read: bool,
    /// Whether something came that is not a part of the transaction.
    is_spoiled: bool,
    /// The one command inside MULTI.
    inside: Option<Found>,
}

/// What a command does to a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransactionPart {
    /// MULTI.
    Multi,
    /// EXEC.
    Exec,
    /// DISCARD or RESET.
    Discard,
    /// UNWATCH.
    Unwatch,
    /// WATCH.
    Watch,
    /// Any other command.
    Other,
}

impl Track {
    /// Whether all commands must be shown, even those about no adopted key.
    #[inline]
    pub(crate) fn is_under_way(&self) -> bool {
        self.watched.is_some()
    }

    /// Notes that something came which is not a part of the transaction.
    pub(crate) fn spoil(&mut self) {
        if let Some(watched) = &mut self.watched {
            watched.is_spoiled = true;
        }
    }

    /// Takes in a command. Returns what is to be noted now.
    pub(crate) fn step(&mut self, part: TransactionPart, look: &AdoptLook) -> Sightings {
        match part {
            TransactionPart::Multi => {
                self.is_in_multi = true;
                smallvec![]
            }
            TransactionPart::Exec => {
                std::mem::take(self).watched.map(Watched::end).unwrap_or_default()
            }
            TransactionPart::Discard => {
                *self = Track::default();
                smallvec![]
            }
            TransactionPart::Unwatch => {
                if !self.is_in_multi {
                    *self = Track::default();
                }
                smallvec![]
            }
            TransactionPart::Watch | TransactionPart::Other if self.is_in_multi => {
                self.inside(look)
            }
            TransactionPart::Watch => self.watch(look),
            TransactionPart::Other => self.outside(look),
        }
    }

    fn inside(&mut self, look: &AdoptLook) -> Sightings {
        if let (Some(watched), AdoptLook::Found(found)) = (&mut self.watched, look)
            && watched.takes(found)
        {
            watched.inside = Some(found.clone());
            return smallvec![];
        }
        self.spoil();
        match look {
            AdoptLook::Found(found) => {
                let is_watched = self.watched.is_some() || self.has_lost_watch;
                let locks = if is_watched { None } else { Some(found.locks) };
                smallvec![in_multi(found.sighting, locks)]
            }
            _ => smallvec![],
        }
    }

    fn watch(&mut self, look: &AdoptLook) -> Sightings {
        let AdoptLook::Found(found) = look else {
            self.watches_others = true;
            self.spoil();
            return smallvec![];
        };
        match &mut self.watched {
            None if found.keys == 1 && !self.watches_others => {
                let watch = found.clone();
                self.watched =
                    Some(Watched { watch, is_read: false, is_spoiled: false, inside: None });
                smallvec![]
            }
            Some(watched) if (found.key, found.keys) == (watched.watch.key, 1) => smallvec![],
            _ => {
                self.has_lost_watch = true;
                self.spoil();
                smallvec![found.sighting]
            }
        }
    }

    fn outside(&mut self, look: &AdoptLook) -> Sightings {
        let AdoptLook::Found(found) = look else { return smallvec![] };
        if let Some(watched) = &mut self.watched
            && found.sighting.form == "GET"
            && found.key == watched.watch.key
        {
            watched.is_read = true;
        }
        smallvec![found.sighting]
    }
}

impl Watched {
    /// Whether this command may be the one inside MULTI.
    fn takes(&self, found: &Found) -> bool {
        self.is_read
            && !self.is_spoiled
            && self.inside.is_none()
            && (found.key, found.keys) == (self.watch.key, 1)
            && matches!(found.sighting.form, "DEL" | "UNLINK" | "EXPIRE" | "PEXPIRE")
            && matches!(found.sighting.op, Op::ReleaseBlind | Op::ExtendBlind)
    }

    fn end(self) -> Sightings {
        match self.inside {
            Some(inside) if !self.is_spoiled => {
                let is_release = inside.sighting.op == Op::ReleaseBlind;
                let (verdict, because) = match inside.queued {
                    Some(_) => (AdoptVerdict::Quorum, ""),
                    None => (inside.sighting.verdict, inside.sighting.because),
                };
                smallvec![Sighting {
                    op: if is_release { Op::Release } else { Op::Extend },
                    form: "WATCH, GET and a transaction",
                    library: "StackExchange.Redis",
                    verdict,
                    because,
                    ..inside.sighting
                }]
            }
            inside => {
                let mut noted: Sightings = smallvec![self.watch.sighting];
                noted.extend(inside.map(|inside| in_multi(inside.sighting, None)));
                noted
            }
        }
    }
}

/// Returns the sighting of a command inside MULTI, which is about this many locks. `None`: an adopted
/// lock is watched, and the transaction is not the known one.
fn in_multi(sighting: Sighting, locks: Option<usize>) -> Sighting {
    let frees = matches!(sighting.op, Op::Release | Op::ReleaseBlind);
    let is_carried_out = locks.is_some_and(|locks| locks == 1 || frees);
    match sighting.verdict {
        AdoptVerdict::Error | AdoptVerdict::Unknown | AdoptVerdict::Forwarded => sighting,
        _ if is_carried_out => sighting,
        _ => Sighting { verdict: AdoptVerdict::Refused, because: verdict::IN_MULTI, ..sighting },
    }
}
