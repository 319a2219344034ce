//! From a line or words to a typed request: nothing panics, a request is read as it was meant, and an error is one
//! line.

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use lockgate::{
    command::{self, BadRequest, Request, operator},
    config::LocksConfig,
    glob,
    resp::{
        encode, inline,
        name::{Name, Own},
        reply::{self, ReplyScanner},
        request::{NextRequest, RequestScanner},
    },
};

/// Checks a line, a command, a question or a pattern made from the input.
pub fn check(input: &[u8]) {
    let (kind, rest) = input.split_first().unwrap_or((&0, &[]));
    let mut data = Unstructured::new(rest);
    // An input that is too short is read as if zeros followed.
    let _ = match kind % 4 {
        0 => line(rest),
        1 => request(&mut data),
        2 => question(&mut data),
        _ => pattern(&mut data),
    };
}

/// Checks that the scanner reads an inline command as `split` does, and that quoting gives the words back.
fn line(line: &[u8]) -> Result<()> {
    let words = inline::split(line);
    if let Some(words) = &words {
        let quoted = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(&b' ');
        assert_eq!(inline::split(&quoted).as_ref(), Some(words));
    }
    let is_line = !line.contains(&b'\n') && !line.contains(&0) && line.first() != Some(&b'*');
    if is_line {
        let (whole, mut pos) = ([line, b"\n"].concat(), 0);
        match (RequestScanner::default().next(&whole, &mut pos), words) {
            (NextRequest::Broken, None) => {}
            (NextRequest::Command { name, arguments, at: 0, .. }, Some(words)) => {
                assert_eq!((arguments, pos), (words.len(), whole.len()));
                assert_eq!(name == Name::Blank, words.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

fn quoted(word: &[u8]) -> Vec<u8> {
    let hex = |byte: &u8| format!("\\x{byte:02x}").into_bytes();
    let mut all = vec![b'"'];
    all.extend(word.iter().flat_map(|byte| match byte {
        b'"' | b'\\' => vec![b'\\', *byte],
        b'a'..=b'z' | b' ' => vec![*byte],
        _ => hex(byte),
    }));
    all.push(b'"');
    all
}

fn word<'a>(data: &mut Unstructured<'a>) -> Result<Vec<u8>> {
    const KNOWN: [&str; 27] = [
        "SHARED",
        "sHaReD",
        "PERMITS",
        "pErmits",
        "k#3",
        "PX",
        "px",
        "EX",
        "WAIT",
        "wAiT",
        "k",
        "1",
        "3",
        "60000",
        "60001",
        "0",
        "-1",
        "01",
        "",
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775",
        "lockgate:x",
        "LOCKS",
        "LOCK",
        "DOCS",
        "INFO",
    ];
    Ok(match data.int_in_range(0..=3)? {
        0 => <Vec<u8>>::from(<&[u8]>::arbitrary_take(data)?),
        1 => data.int_in_range(-10i64..=70_000)?.to_string().into_bytes(),
        _ => data.choose(&KNOWN)?.as_bytes().to_vec(),
    })
}

/// A short run of any bytes.
trait Take<'a> {
    fn arbitrary_take(data: &mut Unstructured<'a>) -> Result<&'a [u8]>;
}

impl<'a> Take<'a> for &'a [u8] {
    fn arbitrary_take(data: &mut Unstructured<'a>) -> Result<&'a [u8]> {
        let length = data.int_in_range(0..=12)?.min(data.len());
        data.bytes(length)
    }
}

fn words(data: &mut Unstructured<'_>) -> Result<Vec<Vec<u8>>> {
    let count = data.int_in_range(0..=9)?;
    (0..count).map(|_| word(data)).collect()
}

fn config(data: &mut Unstructured<'_>) -> Result<LocksConfig> {
    Ok(LocksConfig {
        prefix: if data.arbitrary()? { "lock:".into() } else { String::new() },
        max_key: 10,
        max_token: 6,
        shared: data.arbitrary()?,
        ..LocksConfig::default()
    })
}

fn request(data: &mut Unstructured<'_>) -> Result<()> {
    let own = *data.choose(&[
        Own::Lock,
        Own::Unlock,
        Own::Renew,
        Own::Attach,
        Own::Detach,
        Own::Lockgate,
        Own::Command,
    ])?;
    let (config, words) = (config(data)?, words(data)?);
    let parsed = parse(own, &words, &config);
    let request = match parsed {
        Err(error) => {
            is_one_line(&error);
            return Ok(());
        }
        Ok(request) => request,
    };
    let key = &words[0];
    assert!(key.len() <= config.max_key);
    assert!(!command::full_key(key, &config).starts_with(b"lockgate:"));
    let in_bounds = |time: &Duration, max| (Duration::from_millis(1)..=max).contains(time);
    let permits = match &request {
        Request::Permit { n, .. } => Some(*n),
        _ => None,
    };
    assert!(permits.is_none_or(|n| (1..=256).contains(&n)));
    let (token, ttl, wait) = match &request {
        Request::Lock { token, ttl, wait }
        | Request::Shared { token, ttl, wait }
        | Request::Permit { token, ttl, wait, .. } => (token.as_ref(), *ttl, *wait),
        Request::Unlock { token } => (token.as_ref(), None, None),
        Request::Renew { token, ttl } => (token.as_ref(), *ttl, None),
        Request::Attach { token } => (Some(token), None, None),
        Request::Detach => (None, None, None),
    };
    assert!(token.is_none_or(|token| token.len() <= config.max_token));
    assert!(ttl.is_none_or(|ttl| in_bounds(&ttl, config.max_ttl)));
    assert!(wait.is_none_or(|wait| in_bounds(&wait, config.max_wait)));
    // Written out and parsed again, it is the same request.
    let mut again = vec![key.clone()];
    again.extend(token.iter().map(|token| token.to_vec()));
    for (option, time) in [("WAIT", wait), ("PX", ttl)] {
        if let Some(time) = time {
            again.push(option.into());
            again.push(time.as_millis().to_string().into());
        }
    }
    if let Some(n) = permits {
        assert!(key.len() + format!("#{}", n - 1).len() <= config.max_key);
        again.extend(["PERMITS".into(), n.to_string().into()]);
    }
    if matches!(request, Request::Shared { .. }) {
        assert!(config.shared, "the file allows it");
        again.push("shared".into());
    }
    assert_eq!(parse(own, &again, &config), Ok(request));
    Ok(())
}

fn parse(own: Own, words: &[Vec<u8>], config: &LocksConfig) -> Result<Request, BadRequest> {
    command::check_arity(own, words.len() + 1)?;
    command::parse(own, &command::full_key(&words[0], config), words, config)
}

/// Checks LOCKGATE, and COMMAND INFO or DOCS.
fn question(data: &mut Unstructured<'_>) -> Result<()> {
    let words = words(data)?;
    let _ = operator::command(&words);
    if let Err(error) = operator::lockgate(&words) {
        is_one_line(&error);
    }
    Ok(())
}

/// Checks that a client reads this as one error, whatever the error repeats.
fn is_one_line(error: &BadRequest) {
    let text = error.to_string();
    assert!(text.starts_with("ERR ") && text.len() < 1000, "{text:?}");
    let (mut out, mut pos) = (Vec::new(), 0);
    encode::error(&mut out, &text);
    let mut scanner = ReplyScanner::default();
    let next = scanner.next(&out, &mut pos);
    assert!(matches!(next, reply::NextReply::Frame(frame) if frame.kind() == b'-'), "{text:?}");
    assert_eq!(pos, out.len(), "{text:?}");
}

/// Checks that patterns match as in a plain recursive reading.
fn pattern(data: &mut Unstructured<'_>) -> Result<()> {
    let alphabet = b"ab*?[]^-\\";
    let mut text = |most| -> Result<Vec<u8>> {
        let length = data.int_in_range(0..=most)?;
        (0..length).map(|_| Ok(*data.choose(alphabet)?)).collect()
    };
    let (pattern, text) = (text(10)?, text(8)?);
    let matched = glob::matches(&pattern, &text);
    assert_eq!(matched, matches(&pattern, &text), "{pattern:?} {text:?}");
    Ok(())
}

fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], _) => text.is_empty(),
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|skipped| matches(rest, &text[skipped..])),
        (_, []) => false,
        ([b'?', rest @ ..], [_, text @ ..]) => matches(rest, text),
        ([b'[', class @ ..], [byte, text @ ..]) => {
            let (negated, mut class) = match class {
                [b'^', class @ ..] => (true, class),
                class => (false, class),
            };
            let mut found = false;
            let rest = loop {
                class = match class {
                    [] => break class,
                    [b']', rest @ ..] => break rest,
                    [b'\\', literal, rest @ ..] => {
                        found |= literal == byte;
                        rest
                    }
                    [low, b'-', high, rest @ ..] => {
                        found |= (low.min(high)..=low.max(high)).contains(&byte);
                        rest
                    }
                    [literal, rest @ ..] => {
                        found |= literal == byte;
                        rest
                    }
                };
            };
            found != negated && matches(rest, text)
        }
        ([b'\\', literal, rest @ ..], [byte, text @ ..]) => literal == byte && matches(rest, text),
        ([literal, rest @ ..], [byte, text @ ..]) => literal == byte && matches(rest, text),
    }
}
