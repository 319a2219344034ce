//! The client's own transactions: at MULTI, the data node is made to watch the fences of all locks
//! that the connection holds.

use super::{
    super::{
        desk::Desk,
        jobs::{Pass, Progress, Waits, When},
    },
    armed::Armed,
    forgotten,
    long::{ConnectionChange, MAX_TRIES},
    short,
    subject::{Claimed, Subject, fenced},
    verify::{run_out, verify},
};
use crate::{
    clock::Instant,
    guard::{
        MAX_LOCKS,
        fences::{FenceQuestion, FenceStanding, FencedLock},
    },
    key::Key,
    resp::name::ReplyMode,
};

/// Returns whether fences must be watched before a MULTI is forwarded. If not, forgets those of an earlier MULTI.
pub(in crate::session) fn prepare_to_arm(desk: &mut Desk) -> bool {
    let any = desk.conn.reply_mode == ReplyMode::On && guard_locks(desk).next().is_some();
    if !any {
        desk.conn.armed = None;
    }
    any
}

/// Returns the locks of the connection that guards may need.
fn guard_locks(desk: &Desk) -> impl Iterator<Item = &Key> {
    let guards = desk.shared.guards.as_ref();
    let is_needed = move |key: &&Key| guards.is_some_and(|it| it.is_needed(desk.name(key)));
    desk.tokens.keys().filter(is_needed)
}

/// A MULTI of the client, behind which guarded writes may come.
pub(in crate::session) struct Arming;

impl Waits for Arming {
    fn begin(self: Box<Self>, _when: When, desk: &mut Desk) -> Progress {
        if desk.conn.state.is_resp2_subscriber() || desk.conn.state.monitor {
            return Progress::Pass(Pass::Counted);
        }
        Arming::begin(Claimed::default(), desk)
    }
}

impl Arming {
    /// Has the data node watch the fences of all locks that may be needed.
    pub(super) fn begin(mut claimed: Claimed, desk: &mut Desk) -> Progress {
        // The data node refuses a second MULTI, and can watch nothing inside a transaction.
        if desk.conn.in_multi() {
            return Progress::Pass(Pass::Counted);
        }
        desk.conn.armed = None;
        desk.take_in_history();
        let now = Instant::now();
        if !claimed.verified {
            let asked = run_out(guard_locks(desk).cloned(), now, desk);
            if !asked.is_empty() {
                claimed.verified = true;
                // The error need not be told: no write passes under a lock that is not held.
                return verify(asked, |_, desk| Arming::begin(claimed, desk));
            }
        }
        claimed.claims = guard_locks(desk)
            .take(MAX_LOCKS)
            .filter_map(|key| {
                let (fence, announced) = desk.tokens.claim(key, now)?;
                Some(FencedLock { key: key.clone(), fence, announced, wanted_for: Vec::new() })
            })
            .collect();
        if claimed.claims.is_empty() {
            return Progress::Pass(Pass::Counted);
        }
        if claimed.claims.iter().any(|claim| desk.tokens.is_doubted(&claim.key)) {
            return forgotten::ask(Subject::Multi(claimed), None, desk);
        }
        short::begin(Subject::Multi(claimed), desk)
    }
}

/// Arms the client's transaction without fences. A guarded write in it is refused with this error.
pub(super) fn arm_for_nothing(error: Vec<u8>, desk: &mut Desk) -> Progress {
    let (claims, refused) = (Vec::new(), vec![(None, error)]);
    desk.conn.armed = Some(Box::new(Armed { claims, refused, has_writes: false }));
    Progress::Pass(Pass::Counted)
}

/// Arms the client's transaction once the data node has told its fences and watches them.
pub(super) fn arm(mut claimed: Claimed, fences: &FenceQuestion, desk: &mut Desk) -> Progress {
    if let Some(error) = fences.error() {
        if fences.lacks_replicas() {
            desk.shared.lacks_replicas();
        }
        return arm_for_nothing(error.to_vec(), desk);
    }
    let standings: Vec<FenceStanding> = fences.standings(&claimed.claims).collect();
    if standings.contains(&FenceStanding::Unknown) && claimed.tries < MAX_TRIES {
        for (claim, standing) in claimed.claims.iter_mut().zip(&standings) {
            claim.announced = *standing != FenceStanding::Unknown;
            if !claim.announced {
                desk.tokens.forgotten(&claim.key, claim.fence);
            }
        }
        let undo = ConnectionChange { in_multi: false, astray: false };
        return forgotten::ask(Subject::Multi(claimed), Some(undo), desk);
    }
    let is_largest = |standing: &FenceStanding| {
        matches!(standing, FenceStanding::Largest | FenceStanding::Elsewhere)
    };
    let all_largest = standings.iter().all(is_largest);
    if all_largest && claimed.tries < MAX_TRIES && desk.note_doubts(&mut claimed.claims) {
        let undo = ConnectionChange { in_multi: false, astray: false };
        return forgotten::ask(Subject::Multi(claimed), Some(undo), desk);
    }
    let mut armed = Armed::default();
    for (index, (claim, standing)) in claimed.claims.into_iter().zip(standings).enumerate() {
        match standing {
            FenceStanding::Elsewhere => {
                let error = fences.elsewhere(index).unwrap_or_default().to_vec();
                armed.refused.push((Some(claim.key), error));
            }
            FenceStanding::Largest => {
                desk.tokens.announced(&claim.key, claim.fence);
                armed.claims.push(claim);
            }
            FenceStanding::Fenced(seen) => {
                desk.tokens.superseded(&claim.key, claim.fence);
                let error = fenced(&claim, seen, desk);
                armed.refused.push((Some(claim.key), error.into_bytes()));
            }
            FenceStanding::Unknown => {}
        }
    }
    desk.conn.armed = Some(Box::new(armed));
    Progress::Pass(Pass::Counted)
}
