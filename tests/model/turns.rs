//! Several coordinators that change the lock nodes at once, and whose turn it is to seal (`seals.rs` in
//! `src/lock/members/change`).
//!
//! `change.rs` checks what they may do to locks, in any order. Here the set before is one register, and the question
//! is whether the change comes to an end. A coordinator looks, and then writes if no other has written since. It may
//! die or be late at any time.

use stateright::{Model, Property};

use super::seals::{SealTurn, Seals};

/// The number of coordinators.
const PARTIES: usize = 3;
/// The most seals that they write: one each, and one more for each coordinator that is late and takes the change
/// back.
const SEALS: u64 = 2 * PARTIES as u64;

/// A planted fault, which the checker must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Each coordinator takes the seal back from the one that has taken it.
    TakesBack,
    /// A coordinator that waits never takes the change back.
    WaitsForEver,
}

/// The agreement of the set before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Register {
    Stands,
    Joint(u64),
    Left,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Work {
    /// It looks next.
    Looks,
    /// It has found this, and seals.
    Seals(Register),
    /// It copies under this seal.
    Copies(u64),
    /// It has found this seal, and waits.
    Waits(u64),
    Ended,
    Dead,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Party {
    work: Work,
    seals: Seals,
    was_sealed: bool,
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Everything {
    register: Register,
    parties: [Party; PARTIES],
    /// The number of seals written, and the coordinator that wrote the last one.
    written: u64,
    last: usize,
    deaths: u8,
}

/// One step of one coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Look(usize),
    Write(usize),
    /// It has taken too long, and takes the change back.
    IsLate(usize),
    Die(usize),
}

/// No more seals are written than one for each coordinator and one for each that is late.
pub(crate) const ENDS: &str = "coordinators do not take the seal from each other for ever";
/// Where the coordinator that sealed last lives, or one that waits, nothing stays sealed.
pub(crate) const NOT_SEALED: &str = "who lives leaves nothing sealed";
/// The properties that hold in each state.
pub(crate) const TURNS_ALWAYS: &[&str] = &[ENDS, NOT_SEALED];
/// A coordinator takes another's seal, and the change is done.
pub(crate) const TAKEN_AND_DONE: &str = "a change that was taken over is done";

/// One run of the checker.
pub(crate) struct Turns {
    pub(crate) deaths: u8,
    pub(crate) fault: Option<Fault>,
    pub(crate) properties: &'static [&'static str],
}

impl Model for Turns {
    type State = Everything;
    type Action = Act;

    fn init_states(&self) -> Vec<Everything> {
        let party = Party { work: Work::Looks, seals: Seals::default(), was_sealed: false };
        let parties = std::array::from_fn(|_| party.clone());
        let register = Register::Stands;
        vec![Everything { register, parties, written: 0, last: 0, deaths: self.deaths }]
    }

    fn actions(&self, state: &Everything, acts: &mut Vec<Act>) {
        for (one, party) in state.parties.iter().enumerate() {
            if matches!(party.work, Work::Ended | Work::Dead) {
                continue;
            }
            match party.work {
                Work::Seals(_) | Work::Copies(_) => acts.push(Act::Write(one)),
                _ => acts.push(Act::Look(one)),
            }
            let waits_for_ever = self.fault == Some(Fault::WaitsForEver);
            if !(waits_for_ever && matches!(party.work, Work::Waits(_))) {
                acts.push(Act::IsLate(one));
            }
            if state.deaths > 0 {
                acts.push(Act::Die(one));
            }
        }
    }

    fn next_state(&self, state: &Everything, act: Act) -> Option<Everything> {
        let mut next = state.clone();
        let Everything { register, parties, written, last, deaths } = &mut next;
        match act {
            Act::Look(one) => parties[one].look(*register, self.fault),
            Act::Write(one) => {
                let party = &mut parties[one];
                match party.work {
                    Work::Seals(found) => {
                        let own = *written + 1;
                        if *written > SEALS {
                            return None;
                        }
                        let before = match found {
                            Register::Joint(seal) => Some(seal),
                            Register::Stands | Register::Left => None,
                        };
                        // No other seal has this number.
                        let own = own * PARTIES as u64 + one as u64;
                        party.seals.replaces(before, own);
                        if *register == found {
                            (*register, *last) = (Register::Joint(own), one);
                            *written += 1;
                        }
                    }
                    Work::Copies(seal) if *register == Register::Joint(seal) => {
                        *register = Register::Left;
                    }
                    _ => {}
                }
                party.work = Work::Looks;
            }
            Act::IsLate(one) => {
                if let Register::Joint(_) = register {
                    *register = Register::Stands;
                }
                parties[one].work = Work::Ended;
            }
            Act::Die(one) => {
                *deaths -= 1;
                parties[one].work = Work::Dead;
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Turns>> {
        let all: [Property<Turns>; 3] = [
            Property::always(ENDS, |_, state: &Everything| state.written <= SEALS),
            Property::always(NOT_SEALED, |model: &Turns, state: &Everything| {
                let mut acts = Vec::new();
                model.actions(state, &mut acts);
                let is_over = acts.iter().all(|act| model.next_state(state, *act).is_none());
                let lives = state.parties[state.last].work != Work::Dead;
                let waits = |party: &Party| matches!(party.work, Work::Waits(_));
                let somebody = lives || state.parties.iter().any(waits);
                !(is_over && somebody && matches!(state.register, Register::Joint(_)))
            }),
            Property::sometimes(TAKEN_AND_DONE, |_, state: &Everything| {
                state.register == Register::Left && state.written > 1
            }),
        ];
        all.into_iter().filter(|one| self.properties.contains(&one.name)).collect()
    }
}

impl Party {
    fn look(&mut self, register: Register, fault: Option<Fault>) {
        let found = match register {
            Register::Left => {
                self.work = Work::Ended;
                return;
            }
            // Another coordinator has taken the change back.
            Register::Stands if self.was_sealed => {
                self.work = Work::Ended;
                return;
            }
            Register::Stands => None,
            Register::Joint(seal) => Some(seal),
        };
        self.was_sealed |= found.is_some();
        self.work = match (self.seals.turn(found), found) {
            (SealTurn::Copy(seal), _) => Work::Copies(seal),
            (SealTurn::Wait, Some(seal)) if fault != Some(Fault::TakesBack) => Work::Waits(seal),
            _ => Work::Seals(register),
        };
    }
}
