//! Randomness, in one place: a simulation makes it follow from a seed.

use std::time::Duration;

/// Returns a random time between half of `pause` and all of it, so that proxies that have clashed do not clash again.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + 0.5 * fraction())
}

/// Returns a random number below `end`, which is at least 1.
pub(super) fn below(end: usize) -> usize {
    ((fraction() * end as f64) as usize).min(end.saturating_sub(1))
}

/// Returns a random number that no other caller gets.
pub(super) fn number() -> u64 {
    (fraction() * (1u64 << 53) as f64) as u64
}

#[cfg(not(test))]
fn fraction() -> f64 {
    rand::random()
}

#[cfg(test)]
thread_local! {
    static RANDOM: std::cell::RefCell<Option<rand::rngs::StdRng>> =
        const { std::cell::RefCell::new(None) };
}

/// Makes randomness on this thread follow from `seed` from now on.
#[cfg(test)]
pub(crate) fn set_seed(seed: Option<u64>) {
    use rand::SeedableRng;
    RANDOM.set(seed.map(rand::rngs::StdRng::seed_from_u64));
}

#[cfg(test)]
fn fraction() -> f64 {
    use rand::RngExt;
    RANDOM.with_borrow_mut(|random| match random {
        Some(random) => random.random(),
        None => rand::random(),
    })
}
