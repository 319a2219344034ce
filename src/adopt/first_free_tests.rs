use super::{super::redis_tests::RealRedis, *};
use crate::adopt::{rows, rows::ArgumentPlace};

/// The text of Laravel, which other texts here are made of.
const LARAVEL: &str = r#"for index, value in pairs(redis.call('mget', unpack(KEYS))) do
    if not value then
        redis.call('set', KEYS[index], ARGV[3], "EX", ARGV[2])
        return ARGV[1]..index
    end
end"#;

const OF_LARAVEL: FirstFree = FirstFree { name: 1, ttl: 2, unit: TtlUnit::Seconds, token: 3 };

fn changed(from: &str, to: &str) -> String {
    assert!(LARAVEL.contains(from), "{from}");
    LARAVEL.replace(from, to)
}

/// Spellings that mean the same, but for the places in ARGV and the unit.
fn spellings() -> Vec<(String, FirstFree)> {
    let same = |body: String| (body, OF_LARAVEL);
    vec![
        same(LARAVEL.to_owned()),
        same(LARAVEL.split_whitespace().collect::<Vec<_>>().join(" ")),
        same(LARAVEL.replace('\n', "\r\n\t")),
        same(LARAVEL.replace('\'', "\"")),
        same(LARAVEL.replace('"', "'")),
        same(LARAVEL.replace("index", "i").replace("value", "_")),
        same(LARAVEL.replace("index", "pairs").replace("value", "unpack")),
        same(changed("mget", "MGET")),
        same(changed("\"EX\"", "'ex'")),
        same(changed("..index", " .. index;")),
        same(changed("ARGV[2])", "ARGV[2]);")),
        same(format!("-- slots\n{LARAVEL} --[[ done ]]")),
        same(format!("#!lua\n{LARAVEL};\n")),
        (changed("\"EX\"", "'PX'"), FirstFree { unit: TtlUnit::Millis, ..OF_LARAVEL }),
        (
            LARAVEL.replace("ARGV[1]", "ARGV[ 4 ]").replace("ARGV[2]", "ARGV[1]"),
            FirstFree { name: 4, ttl: 1, ..OF_LARAVEL },
        ),
    ]
}

#[test]
fn spellings_of_it_are_known() {
    for (body, expected) in spellings() {
        assert_eq!(of(body.as_bytes()), Some(expected), "{body}");
    }
    // By its digest alone Laravel's own text is known just so.
    let digest = sha1_smol::Sha1::from(LARAVEL).digest().bytes();
    let row = rows::by_digest(&digest).expect("its row");
    assert_eq!(row.library, "Laravel");
    assert_eq!(row.name, Some(ArgumentPlace::Argv(OF_LARAVEL.name)));
    assert_eq!(row.token, Some(ArgumentPlace::Argv(OF_LARAVEL.token)));
    assert_eq!(row.ttl, Some((ArgumentPlace::Argv(OF_LARAVEL.ttl), OF_LARAVEL.unit)));
}

#[test]
fn what_is_nearly_it_is_not() {
    for body in [
        changed("not value", "value"),
        changed("not value", "not index"),
        changed("not value", "not not value"),
        changed("not value", "value == nil"),
        changed("index, value", "value, index"),
        changed("index, value", "index, other"),
        changed("index, value", "index, _, value"),
        LARAVEL.replace("value", "index"),
        LARAVEL.replace("index", "KEYS"),
        LARAVEL.replace("value", "ARGV"),
        LARAVEL.replace("value", "redis"),
        changed("KEYS[index]", "KEYS[1]"),
        changed("KEYS[index]", "ARGV[index]"),
        changed("KEYS[index]", "index"),
        changed("unpack(KEYS)", "unpack(ARGV)"),
        changed("unpack(KEYS)", "KEYS[1]"),
        changed("unpack(KEYS)", "unpack(KEYS), 'x'"),
        changed("unpack(KEYS)", "unpack(KEYS, 2)"),
        changed("unpack", "select"),
        changed("pairs", "next"),
        changed("'mget'", "'exists'"),
        changed("'set'", "'setnx'"),
        changed("'set'", "'getset'"),
        changed("redis.call('set'", "redis.pcall('set'"),
        changed("redis.call('mget'", "redis.pcall('mget'"),
        changed("\"EX\", ARGV[2]", "\"EX\", ARGV[2], 'XX'"),
        changed("\"EX\", ARGV[2]", "\"EXAT\", ARGV[2]"),
        changed(", \"EX\", ARGV[2]", ""),
        changed("\"EX\"", "ARGV[4]"),
        changed("ARGV[3]", "ARGV[0]"),
        changed("ARGV[3]", "KEYS[3]"),
        changed("ARGV[3]", "'x'"),
        changed("ARGV[3]", "tonumber(ARGV[3])"),
        changed("ARGV[1]..index", "ARGV[1]"),
        changed("ARGV[1]..index", "index"),
        changed("ARGV[1]..index", "KEYS[index]"),
        changed("ARGV[1]..index", "index..ARGV[1]"),
        changed("ARGV[1]..index", "ARGV[1]..value"),
        changed("ARGV[1]..index", "ARGV[1]..index..index"),
        changed("ARGV[1]..index", "ARGV[1]...index"),
        changed("return ARGV[1]..index", ""),
        changed("return ARGV[1]..index", "do return ARGV[1]..index end"),
        changed("    end\nend", "    else return 0 end\nend"),
        changed("redis.call('mget'", "redis.call\n('mget'"),
        changed("pairs(", "pairs\n("),
        changed("\n    end\nend", "\n    end"),
        format!("{LARAVEL} return 0"),
        format!("{LARAVEL} end"),
        format!("{LARAVEL};;"),
        format!("redis.call('del', KEYS[1]) {LARAVEL}"),
        format!("local x = 1 {LARAVEL}"),
        format!("#!lua flags=no-writes\n{LARAVEL}"),
        format!("{LARAVEL}\0"),
        // How many are taken, by a newer Laravel.
        "local count = 0\nfor index, value in pairs(redis.call('mget', unpack(KEYS))) do\n    \
         if value then\n        count = count + 1\n    end\nend\nreturn count"
            .to_owned(),
        String::new(),
    ] {
        assert_eq!(of(body.as_bytes()), None, "{body}");
    }
}

/// Returns what a script with these places, called with `arguments`, is to answer for keys of which these are free.
fn expected(known: FirstFree, arguments: &[&str], free: &[bool]) -> (String, Option<usize>) {
    let first = free.iter().position(|free| *free);
    match first {
        Some(at) => (format!("{}{}", arguments[known.name - 1], at + 1), first),
        None => ("$-1".to_owned(), None),
    }
}

/// Whichever token of a spelling is left out, doubled or exchanged for another, what is still known does on Redis what it
/// is taken for.
#[test]
fn whatever_is_known_does_that_on_redis() {
    const KEYS: [&str; 3] = ["a", "b", "c"];
    let arguments = ["1000", "2000", "3000", "4000"];
    let mut bodies: Vec<String> = Vec::new();
    for (body, _) in spellings() {
        let words: Vec<&str> = body.split_inclusive(|c: char| !c.is_alphanumeric()).collect();
        let others = words.clone();
        bodies.push(body.clone());
        for at in 0..words.len() {
            let with = |new: &[&str]| [&words[..at], new, &words[at + 1..]].concat().concat();
            bodies.extend([with(&[]), with(&[words[at], words[at]])]);
            bodies.extend(others.iter().map(|other| with(&[other])));
        }
    }
    let known: Vec<(&String, FirstFree)> =
        bodies.iter().filter_map(|body| Some((body, of(body.as_bytes())?))).collect();
    assert!(bodies.len() > 20_000 && known.len() > 500, "{} {}", bodies.len(), known.len());
    let mut real = RealRedis::start();
    for (body, known) in known {
        if [known.name, known.ttl, known.token].iter().any(|at| *at > arguments.len()) {
            continue;
        }
        for free in [[true, true, true], [false, true, false], [false; 3]] {
            let mut commands: Vec<Vec<&[u8]>> = vec![vec![b"FLUSHALL"]];
            for (key, _) in KEYS.iter().zip(free).filter(|(_, free)| !free) {
                commands.push(vec![b"SET", key.as_bytes(), b"other"]);
            }
            let call = ["EVAL", body.as_str(), "3"].into_iter().chain(KEYS).chain(arguments);
            commands.push(call.map(str::as_bytes).collect());
            commands.extend(KEYS.map(|key| vec![&b"GET"[..], key.as_bytes()]));
            commands.extend(KEYS.map(|key| vec![&b"PTTL"[..], key.as_bytes()]));
            let begun = std::time::Instant::now();
            let replies = real.all(&commands);
            // No TTL has run for longer than that.
            let ran = i64::try_from(begun.elapsed().as_millis()).unwrap() + 1;
            let [.., reply, _, _, _, _, _, _] = &replies[..] else { unreachable!() };
            let (told, taken) = expected(known, &arguments, &free);
            assert_eq!(*reply, told, "{body:?} as {known:?}");
            for (at, key) in KEYS.iter().enumerate() {
                let (value, ttl) =
                    (&replies[replies.len() - 6 + at], &replies[replies.len() - 3 + at]);
                let expected = match () {
                    () if taken == Some(at) => arguments[known.token - 1],
                    () if free[at] => "$-1",
                    () => "other",
                };
                assert_eq!(value, expected, "{body:?} as {known:?}: {key}");
                if taken == Some(at) {
                    let count: i64 = arguments[known.ttl - 1].parse().unwrap();
                    let most = count * if known.unit == TtlUnit::Seconds { 1000 } else { 1 };
                    let ttl: i64 = ttl.trim_start_matches(':').parse().unwrap();
                    assert!((most - ran..=most).contains(&ttl), "{body:?} as {known:?}: {ttl}");
                }
            }
        }
    }
}
