//! Bodies of scripts: whatever stands in one, and however long its chains are, it is read on a small
//! stack, and a blank or a comment at its end changes nothing.

use lockgate::is_lock_script;

/// As much as is looked at of a script.
const MOST: usize = 16 * 1024;
const STACK: usize = 256 * 1024;

/// Parts of bodies; some of them make chains.
const PARTS: [&str; 40] = [
    "()",
    ".a",
    "[1]",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "x",
    "1",
    "'a'",
    "=",
    "==",
    "~=",
    ",",
    ";",
    ".",
    "..",
    " ",
    "\n",
    "--",
    "--[[",
    "]]",
    "local x = ",
    "return ",
    "if ",
    " then ",
    " else ",
    " end ",
    "redis",
    "redis.call",
    "redis.pcall",
    "KEYS[1]",
    "ARGV[1]",
    "ARGV[2]",
    "'get'",
    "'del'",
    "x(",
    "#!lua\n",
];

/// Most repetitions of one part, as a power of two.
const OFTEN: u8 = 14;

/// Each byte below 0xf0 is a part, and others say how often the next one stands.
fn body(input: &[u8]) -> Vec<u8> {
    let (mut body, mut times) = (Vec::new(), 1);
    for byte in input {
        match byte {
            0xf0.. => times = 1_usize << ((byte & 15) % (OFTEN + 1)),
            part => {
                let part = PARTS[usize::from(*part) % PARTS.len()].as_bytes();
                let room = MOST.saturating_sub(body.len()) / part.len();
                body.extend(part.repeat(times.min(room)));
                times = 1;
            }
        }
    }
    body
}

/// Checks a body made of an input.
pub fn check(input: &[u8]) {
    let body = body(input);
    let check = move || {
        let is_one = is_lock_script(&body);
        for more in ["\n", " --a", "--[[ ]]"] {
            assert_eq!(is_lock_script(&[&body, more.as_bytes()].concat()), is_one, "{more:?}");
        }
    };
    let small = std::thread::Builder::new().stack_size(STACK);
    let ended = small.spawn(check).expect("a thread").join();
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}
