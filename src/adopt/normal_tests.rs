use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use rand::{RngExt as _, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::{
    super::{redis_tests::RealRedis, rows},
    *,
};

/// Spellings of both forms, written for this test.
const BODIES: &[&str] = &[
    r"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
    r#"if redis.call("GET",KEYS[1])==ARGV[1] then return redis.call("DEL",KEYS[1]) else return 0 end"#,
    "local held = redis.call('get', KEYS[1])\nif held == ARGV[2] then\n  redis.call('UNLINK', KEYS[1])\n  return 1\nend\nreturn 0\n",
    "if ARGV[1] ~= redis.pcall('Get', KEYS[1]) then return 0 end return redis.pcall('unlink', KEYS[1])",
    "local key, token = KEYS[1], ARGV[1];\nlocal call = redis.call;\nif ((call('get', (key)) == token)) then\n  return (call('del', key));\nelse\n  return (0);\nend;\n",
    "-- ours?\nif redis.call('get', KEYS[1]) == ARGV[1] --[[ it is ]] then return redis . call('del', KEYS [ 1 ]) end --[==[ no ]] ]==] return 0 -- not",
    "local k local_ = 1",
    "local k = KEYS local a = ARGV local r = redis if r.call('get', k[1]) == a[3] then local n = r.call('del', k[1]) return n end return 0",
    r"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end",
    "if redis.call('get', KEYS[1]) ~= ARGV[2]\nthen\n\treturn 0\nelse\n\treturn redis.call('EXPIRE', KEYS[1], ARGV[1])\nend",
    r#"if redis.call("get", KEYS[1]) == ARGV[1] then redis.call("set", KEYS[1], ARGV[1], "PX", ARGV[2]) return 1 end return 0"#,
    r#"local v = redis.call("get", KEYS[1]) if v == ARGV[1] then redis.call("set", KEYS[1], v, "xx", "ex", ARGV[3]) return 1 else return 0 end"#,
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end",
    "#!lua\nif redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return nil end",
    "if redis.call('get', KEYS[1]) ~= ARGV[1] then return false end return redis.call('pexpire', KEYS[1], tonumber(ARGV[2]))",
    "local ttl = tonumber(ARGV[3]) if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('expire', KEYS[1], ttl) return 1 end",
    "local got = redis.call('get', KEYS[1]) local is = ARGV[1] if is == got then redis.call('pexpire', KEYS[1], ARGV[2]) return 1 end return 0",
];
/// The body that is neither.
const NEITHER: usize = 6;

/// What may replace a token, or be put before it.
const POOL: &[&str] = &[
    "KEYS",
    "ARGV",
    "redis",
    "call",
    "pcall",
    "get",
    "1",
    "2",
    "0",
    "3",
    "'get'",
    "'del'",
    "\"pexpire\"",
    "'expire'",
    "'set'",
    "'PX'",
    "'EX'",
    "'xx'",
    "'nx'",
    "'x'",
    "==",
    "~=",
    "=",
    "(",
    ")",
    "[",
    "]",
    ",",
    ".",
    ";",
    "if",
    "then",
    "else",
    "end",
    "return",
    "local",
    "not",
    "and",
    "nil",
    "false",
    "tostring",
    "tonumber",
    "tonumber(ARGV[2])",
    "return nil",
    "\n",
    "--",
    "KEYS[1]",
    "ARGV[1]",
    "ARGV[2]",
    "return 0",
    "-1",
    "key",
    "token",
    "call(",
    "1.0",
    "01",
    ", 1",
    ", ARGV[1]",
    ", 'xx'",
];

/// Splits a body into its tokens, roughly.
fn split(body: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut quote = None;
    for c in body.chars() {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        match tokens.last_mut() {
            Some(last) if quote.is_some() => {
                last.push(c);
                if quote == Some(c) {
                    quote = None;
                }
            }
            Some(last) if is_part(c) && last.chars().all(is_part) => last.push(c),
            Some(last) if c == '=' && (last == "=" || last == "~") => last.push(c),
            _ => {
                quote = matches!(c, '\'' | '"').then_some(c);
                tokens.push(c.to_string());
            }
        }
    }
    tokens
}

/// Returns each body with one token changed, removed, doubled, or with another before it.
fn mutants() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for body in BODIES {
        all.insert((*body).to_owned());
        let tokens = split(body);
        for at in 0..tokens.len() {
            if tokens[at].trim().is_empty() {
                continue;
            }
            let with = |new: &[&str]| {
                let before = tokens[..at].concat();
                format!("{before} {} {}", new.join(" "), tokens[at + 1..].concat())
            };
            all.insert(with(&[]));
            all.insert(with(&[&tokens[at], &tokens[at]]));
            for other in POOL {
                all.insert(with(&[other]));
                all.insert(with(&[other, &tokens[at]]));
            }
        }
    }
    all
}

const ARGUMENTS: [&str; 3] = ["11111", "60000", "50000"];
const LONG: i64 = 5_000_000;

/// Fails unless a body answers, and leaves the key, as what it was taken for does, whatever the key holds.
fn behaves(real: &mut RealRedis, body: &str, normal: Normal) -> Result<(), String> {
    behaves_with(real, body, normal, None)?;
    match normal {
        Normal::Release { .. } => Ok(()),
        Normal::Extend { .. } => {
            ["0", "-5"].iter().try_for_each(|ttl| behaves_with(real, body, normal, Some(ttl)))
        }
    }
}

/// Does the same, with this TTL instead of that among [`ARGUMENTS`] if one is given.
fn behaves_with(
    real: &mut RealRedis,
    body: &str,
    normal: Normal,
    least: Option<&str>,
) -> Result<(), String> {
    let mut arguments = ARGUMENTS;
    let (token, ttl) = match normal {
        Normal::Release { token, .. } => (token, None),
        Normal::Extend { token, ttl, unit, is_set, .. } => (token, Some((ttl, unit, is_set))),
    };
    let (Normal::Release { is_nil, .. } | Normal::Extend { is_nil, .. }) = normal;
    if let (Some(least), Some((ttl, ..))) = (least, ttl) {
        match arguments.get_mut(ttl - 1) {
            Some(argument) if ttl != token => *argument = least,
            _ => return Ok(()),
        }
    }
    let argument = |at: usize| arguments.get(at - 1).copied();
    let Some(mine) = argument(token) else { return Ok(()) };
    let ttl = match ttl.map(|(ttl, unit, is_set)| (argument(ttl), unit, is_set)) {
        Some((None, ..)) => return Ok(()),
        Some((Some(ttl), unit, is_set)) => {
            let ttl: i64 = ttl.parse().unwrap();
            Some((if unit == TtlUnit::Seconds { 1000 * ttl } else { ttl }, is_set))
        }
        None => None,
    };
    let long = LONG.to_string();
    let states = [("", false), (mine, false), (mine, true), ("another", false), ("another", true)];
    let mut commands: Vec<Vec<&[u8]>> = Vec::new();
    for (value, is_lasting) in states {
        let mut set: Vec<&[u8]> = vec![b"SET", b"k", value.as_bytes()];
        if value.is_empty() {
            set = vec![b"DEL", b"k"];
        } else if !is_lasting {
            set.extend([&b"PX"[..], long.as_bytes()]);
        }
        let [first, second, third] = arguments.map(str::as_bytes);
        let eval = vec![b"EVAL", body.as_bytes(), b"1", b"k", first, second, third];
        commands.extend([set, eval, vec![b"GET", b"k"], vec![b"PTTL", b"k"]]);
    }
    let all = real.all(&commands);
    for ((value, is_lasting), replies) in states.into_iter().zip(all.chunks(4)) {
        let [_, reply, left, pttl] = replies else { unreachable!() };
        let pttl: i64 = pttl.trim_start_matches(':').parse().unwrap();
        let is_mine = value == mine;
        // A TTL of 0 or less deletes the key, or is an error for SET.
        let (is_freed, is_error) = match ttl {
            _ if !is_mine => (false, false),
            None => (true, false),
            Some((ttl, is_set)) => (ttl <= 0 && !is_set, ttl <= 0 && is_set),
        };
        let expected_left = if is_freed || value.is_empty() { "$-1" } else { value };
        let expected_ttl = match ttl {
            _ if expected_left == "$-1" => -2,
            Some((ttl, _)) if is_mine && !is_error => ttl,
            _ if is_lasting => -1,
            _ => LONG,
        };
        let is_told = match is_error {
            true => reply.starts_with('-'),
            false if is_nil && !is_mine => reply == "$-1",
            false => *reply == format!(":{}", i32::from(is_mine)),
        };
        let is_right = is_told
            && left == expected_left
            && (pttl == expected_ttl || (expected_ttl - 30_000..=expected_ttl).contains(&pttl));
        if !is_right {
            return Err(format!(
                "{body:?} as {normal:?}, {arguments:?} from {value:?}: {reply} {left} {pttl}, not \
                 {expected_left} {expected_ttl}"
            ));
        }
    }
    Ok(())
}

/// Returns a body with up to three random changes of its tokens, or the beginning of one body and the
/// end of another.
fn changed(body: &str, other: &str, random: &mut StdRng) -> String {
    let mut tokens = split(body);
    let others = split(other);
    if random.random_ratio(1, 8) {
        tokens.truncate(random.random_range(0..=tokens.len()));
        tokens.extend_from_slice(&others[random.random_range(0..=others.len())..]);
        return tokens.concat();
    }
    for _ in 0..random.random_range(1..=3) {
        let at = random.random_range(0..tokens.len().max(1));
        let from = if random.random() { POOL.choose(random).copied() } else { None };
        let new = from.map(str::to_owned).or_else(|| others.choose(random).cloned());
        let new = format!(" {} ", new.unwrap_or_default());
        match (random.random_range(0..6), at < tokens.len()) {
            (0, true) => drop(tokens.remove(at)),
            (1, true) => tokens.insert(at, tokens[at].clone()),
            (2, true) => {
                let with = random.random_range(0..tokens.len());
                tokens.swap(at, with);
            }
            (3 | 4, true) => tokens[at] = new,
            _ => tokens.insert(at, new),
        }
    }
    tokens.concat()
}

#[test]
fn spellings_are_known() {
    for (at, body) in BODIES.iter().enumerate() {
        assert_eq!(of(body.as_bytes()).is_some(), at != NEITHER, "{body}");
        let digest = sha1_smol::Sha1::from(body).digest().bytes();
        assert!(rows::by_digest(&digest).is_none(), "a library's own text: {body}");
    }
    let of = |at: usize| of(BODIES[at].as_bytes()).unwrap();
    assert_eq!(of(2), Normal::Release { token: 2, is_nil: false });
    assert_eq!(of(7), Normal::Release { token: 3, is_nil: false });
    assert_eq!(of(12), Normal::Release { token: 1, is_nil: true });
    let is_nil = false;
    let extend = |token, ttl, unit, is_set| Normal::Extend { token, ttl, unit, is_set, is_nil };
    assert_eq!(of(8), extend(1, 2, TtlUnit::Millis, false));
    assert_eq!(of(9), extend(2, 1, TtlUnit::Seconds, false));
    assert_eq!(of(11), extend(1, 3, TtlUnit::Seconds, true));
}

/// Each known body leaves Redis as what it was taken for would, whatever token was changed.
#[test]
fn whatever_is_known_behaves_as_what_it_is_taken_for() {
    let mut real = RealRedis::start();
    let mutants = mutants();
    let known: Vec<(&String, Normal)> =
        mutants.iter().filter_map(|body| Some((body, of(body.as_bytes())?))).collect();
    assert!(mutants.len() > 20_000 && known.len() > 200, "{} {}", mutants.len(), known.len());
    let wrong: Vec<String> =
        known.iter().filter_map(|(body, normal)| behaves(&mut real, body, *normal).err()).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), known.len(), wrong.join("\n"));
}

/// The most bytes of a body that is changed further, and the most bodies.
const LARGEST: usize = 1500;
const MOST: usize = 400;
/// How many known bodies are compared with a real Redis if no time is given.
const CHECKED: u64 = 400;

/// Random changes pile up: a body that is still known is changed further. It runs for
/// LOCKGATE_FUZZ_SECONDS, or up to a number of known bodies; LOCKGATE_SEED chooses other changes.
#[test]
fn whatever_they_drift_into_behaves_as_what_it_is_taken_for() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let time = number("LOCKGATE_FUZZ_SECONDS").map(Duration::from_secs);
    let seed = number("LOCKGATE_SEED").unwrap_or_default();
    let (began, mut random) = (Instant::now(), StdRng::seed_from_u64(seed));
    let mut real = RealRedis::start();
    let known = |body: &&&str| of(body.as_bytes()).is_some();
    let mut bodies: Vec<String> = BODIES.iter().filter(known).map(|&body| body.into()).collect();
    let (mut seen, mut tried, mut checked) = (BTreeSet::new(), 0_u64, 0_u64);
    while time.map_or(checked < CHECKED, |time| began.elapsed() < time) {
        tried += 1;
        let (Some(one), Some(other)) = (bodies.choose(&mut random), bodies.choose(&mut random))
        else {
            unreachable!("there are some")
        };
        let body = changed(one, other, &mut random);
        let Some(normal) = of(body.as_bytes()) else { continue };
        // Compared without blanks and comments, in which most changes would pile up.
        let is_new = seen.insert(format!("{:?}", lua::parse(body.as_bytes())));
        if body.len() > LARGEST || !is_new && random.random_ratio(9, 10) {
            continue;
        }
        if let Err(wrong) = behaves(&mut real, &body, normal) {
            panic!("seed {seed}: {wrong}");
        }
        checked += 1;
        if checked % 5_000 == 0 {
            // Redis and the set keep each body.
            real.all(&[vec![b"SCRIPT", b"FLUSH"]]);
            seen.clear();
        }
        match bodies.len() < MOST {
            _ if !is_new => {}
            true => bodies.push(body),
            false => {
                let at = random.random_range(0..bodies.len());
                bodies[at] = body;
            }
        }
    }
    println!("{tried} bodies, {checked} of them known; the last that was kept:");
    println!("{}", bodies.last().map_or("", String::as_str));
}

#[test]
fn what_is_nearly_one_of_them_is_neither() {
    for body in [
        "",
        "return 0",
        "return redis.call('del', KEYS[1])",
        "if redis.call('get', KEYS[2]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('del', KEYS[1]) end",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 2",
        "if redis.call('get', KEYS[1]) == tonumber(ARGV[1]) then return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], tonumber(ARGV[2], 10)) end return 0",
        "if redis.call('get', KEYS[1]) == nil then return redis.call('del', KEYS[1]) end return 0",
        "#!lua name=x\nif redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1], KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == 'x' then return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1], KEYS[2]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('pexpire', KEYS[1], ARGV[2]) return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then redis.pcall('pexpire', KEYS[1], ARGV[2]) return 1 end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2], 'GT') end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('set', KEYS[1], ARGV[2], 'PX', ARGV[2]) return 1 end return 0",
        "local c = redis.call if c('get', KEYS[1]) == ARGV[1] then return c\n('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end redis.call('del', KEYS[1]) return 0",
        "redis.call('del', KEYS[1]) if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('d\\101l', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0 return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end;; return 0",
        "#!lua flags=no-writes\nif redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
        "local ARGV = KEYS if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0 --[[",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0\0",
    ] {
        assert_eq!(of(body.as_bytes()), None, "{body}");
    }
}

#[test]
fn bodies_without_end_are_read_in_no_time() {
    for body in ["(".repeat(100_000), "if ".repeat(100_000), "--[[".repeat(10_000)] {
        assert_eq!(of(body.as_bytes()), None);
    }
    let brackets = format!("if {} then return 0 end", "(".repeat(10_000));
    assert_eq!(of(brackets.as_bytes()), None);
    // The links of a chain count like brackets; a library's script has few.
    let known = |body: &str| lua::parse(body.as_bytes()).is_some();
    for (few, many) in [(14, 16), (1, 100_000)] {
        for link in ["()", ".a", "[1]"] {
            assert!(known(&format!("return x{}", link.repeat(few))), "{few} {link}");
            assert!(!known(&format!("return x{}", link.repeat(many))), "{many} {link}");
        }
    }
    assert!(known(&"local a = x.y()[1] ".repeat(100)), "one behind the other");
}
