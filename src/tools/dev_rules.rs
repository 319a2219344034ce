//! The guards and adopt rules of `lockgate dev`, made from its options.

use std::fmt::Write as _;

use crate::config::{AdoptConfig, AdoptRule, Config, ConfigErrors, GuardRule, GuardsConfig};

/// The text for each star in the keys of the commands to try.
const EXAMPLE: &str = "1";

/// Reads the rules. A guarded key needs the lock of the same name, and adopted keys have mode enforce.
///
/// # Errors
/// The configuration's errors about such keys.
pub(super) fn read(
    guard: &[String],
    adopt: &[String],
) -> Result<(GuardsConfig, AdoptConfig), ConfigErrors> {
    // A JSON string is valid YAML, whatever the keys contain.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut text = String::from("guards:\n");
    // Writing to a String cannot fail.
    for keys in guard {
        let _ = writeln!(text, "  - {{keys: {}, lock: {}}}", quoted(keys), quoted(&lock_of(keys)));
    }
    text += "adopt:\n";
    for keys in adopt {
        let _ = writeln!(text, "  - {{keys: {}, mode: enforce}}", quoted(keys));
    }
    let name = "lockgate dev --guard, --adopt";
    let config = match (guard, adopt) {
        ([], []) => Config::default(),
        ([], _) => Config::parse(text.trim_start_matches("guards:\n"), name, &|_| None)?,
        (_, []) => Config::parse(text.trim_end_matches("adopt:\n"), name, &|_| None)?,
        _ => Config::parse(&text, name, &|_| None)?,
    };
    Ok((config.guards, config.adopt))
}

/// The template of the lock with the same name as the key: each star becomes its capture.
fn lock_of(keys: &str) -> String {
    let mut parts = keys.split('*');
    let mut lock = parts.next().unwrap_or_default().to_owned();
    for (number, part) in (1..).zip(parts) {
        lock += &format!("{{{number}}}{part}");
    }
    lock
}

/// Returns commands to try with these rules. `cli`: redis-cli with the options that lead to the proxy.
pub(super) fn to_try(guards: &[GuardRule], adopt: &[AdoptRule], cli: &str) -> String {
    let mut text = String::new();
    let shown = |bytes: Option<Vec<u8>>| {
        String::from_utf8_lossy(&bytes.unwrap_or_default()).escape_default().to_string()
    };
    if let Some(rule) = guards.first() {
        let key = shown(rule.keys.example(EXAMPLE));
        text += &format!(
            "  {cli} SET {key} 100      (refused: NOTHELD, nobody has the lock {key})\n  \
             printf 'LOCK {key}\\nSET {key} 100\\n' | {cli}      (written under its lock)\n"
        );
    }
    if let Some(rule) = adopt.first() {
        let key = shown(rule.keys.example(EXAMPLE));
        text += &format!(
            "  {cli} SET {key} me NX PX 30000      (what lock libraries send: a lock of the \
             lock nodes)\n  \
             {cli} LOCKGATE LOCK {key}\n  \
             {cli} LOCKGATE ADOPTED      (which programs lock in which way)\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_the_configuration_reads_them() {
        let of = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let (guards, adopt) = read(&of(&["account:*", "b:*:c:*"]), &of(&["lock:*"])).unwrap();
        let locks: Vec<&str> = guards.rules.iter().map(|rule| rule.lock.as_str()).collect();
        assert_eq!(locks, ["account:{1}", "b:{1}:c:{2}"]);
        assert!(guards.enforces() && adopt.rules[0].mode.is_answered());
        let (guards, adopt) = read(&[], &[]).unwrap();
        assert!(guards.rules.is_empty() && adopt.rules.is_empty());
        assert_eq!(read(&of(&["a"]), &[]).unwrap().0.rules[0].lock.as_str(), "a");
        assert_eq!(read(&[], &of(&["m\"x*"])).unwrap().1.rules[0].keys.as_str(), "m\"x*");
        assert!(read(&of(&[""]), &[]).is_err());
    }
}
