//! Reads durations and sizes as people write them.

use std::time::Duration;

/// Units of time, in microseconds.
const TIME: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];
/// Units of memory, in bytes, as redis.conf reads them.
const MEMORY: [(&str, u64); 7] = [
    ("b", 1),
    ("k", 1_000),
    ("kb", 1024),
    ("m", 1_000_000),
    ("mb", 1024 * 1024),
    ("g", 1_000_000_000),
    ("gb", 1024 * 1024 * 1024),
];

/// Reads `50ms`, `10s`, `7d`. Returns `None` if `text` is not a duration or has no unit.
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = parts(text)?;
    let (_, micros) = TIME.iter().find(|(name, _)| *name == unit)?;
    Some(Duration::from_micros(number.checked_mul(*micros)?))
}

/// Writes a time as [`duration`] reads it, in the largest unit that leaves no rest: `50ms`, `10s`, `1h`.
pub(crate) fn written(time: Duration) -> String {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let fits = |(_, unit): &&(&str, u64)| micros.is_multiple_of(*unit);
    match TIME.iter().rev().find(fits).filter(|_| micros > 0) {
        Some((name, unit)) => format!("{}{name}", micros / unit),
        None => "0s".into(),
    }
}

/// Reads `512`, `64kb`, `1mb`; a number without a unit is in bytes. Returns `None` if `text` is not a size.
pub(super) fn size(text: &str) -> Option<usize> {
    let (number, unit) = parts(text)?;
    let bytes = match unit.to_ascii_lowercase().as_str() {
        "" => 1,
        unit => MEMORY.iter().find(|(name, _)| *name == unit)?.1,
    };
    usize::try_from(number.checked_mul(bytes)?).ok()
}

fn parts(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_sizes_do_not() {
        assert_eq!(duration("250us"), Some(Duration::from_micros(250)));
        assert_eq!(duration("50ms"), Some(Duration::from_millis(50)));
        assert_eq!(duration("10s"), Some(Duration::from_secs(10)));
        assert_eq!(duration("2m"), Some(Duration::from_secs(120)));
        assert_eq!(duration("7d"), Some(Duration::from_secs(604_800)));
        for bad in ["", "5", "s", "-1s", "1.5s", "1 s", "1S", "99999999999999999d", "1sm"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
        for text in ["0s", "250us", "1500ms", "10s", "90s", "2m", "1h", "36h", "7d"] {
            assert_eq!(written(duration(text).unwrap()), text);
        }
        assert_eq!(size("512"), Some(512));
        assert_eq!(size("64kb"), Some(65_536));
        assert_eq!(size("1MB"), Some(1 << 20));
        assert_eq!(size("1m"), Some(1_000_000));
        for bad in ["", "kb", "-1", "1.5mb", "1 kb", "1tb", "99999999999gb"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }
}
