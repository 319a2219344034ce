//! Keys that a new lock node has already: `lockgate init` and `lockgate doctor` tell that locks share the Redis with
//! them.

use bb8_redis::redis::aio::MultiplexedConnection;

use crate::lock;

/// Counts the keys of all databases that are not Lockgate's, by the fields of INFO of a lock node which has a part in no
/// deployment.
pub(super) async fn count_foreign<'a>(
    connection: &mut MultiplexedConnection,
    fields: impl Iterator<Item = (&'a str, &'a str)>,
) -> u64 {
    match count_keys(fields) {
        0 => 0,
        keys => keys.saturating_sub(lock::count_own_of_new(connection).await),
    }
}

/// Counts the keys of all databases, by the fields of INFO.
fn count_keys<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> u64 {
    let is_database =
        |name: &str| name.strip_prefix("db").is_some_and(|number| number.parse::<u32>().is_ok());
    let count = |value: &str| {
        value.strip_prefix("keys=").and_then(|rest| rest.split(',').next()?.parse::<u64>().ok())
    };
    fields.filter(|(name, _)| is_database(name)).filter_map(|(_, value)| count(value)).sum()
}

/// What is told of a Redis with so many keys; nothing if it has none.
pub(super) fn shared_with_keys(keys: u64) -> Option<String> {
    let s = if keys == 1 { "" } else { "s" };
    (keys > 0).then(|| format!("it has {keys} key{s} already: locks share this Redis with them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_all_databases_are_counted() {
        let fields = [
            ("db0", "keys=2,expires=1,avg_ttl=5"),
            ("db12", "keys=40,expires=0,avg_ttl=0,subexpiry=0"),
            ("db1", "x"),
            ("dbfilename", "keys=7,"),
            ("role", "master"),
        ];
        assert_eq!(count_keys(fields.into_iter()), 42);
        assert_eq!(shared_with_keys(0), None);
    }
}
