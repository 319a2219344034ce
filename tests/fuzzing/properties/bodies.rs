//! Bodies of scripts: any body, with chains of any length, is read on a small stack, and a blank or a comment at its
//! end changes nothing.

use lockgate::is_lock_script;

/// The longest part of a script that the proxy reads.
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

/// The most repetitions of one part, as a power of two.
const OFTEN: u8 = 14;

/// Makes a body: each byte below 0xf0 is a part, and any other says how often the next part is repeated.
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

/// Checks the body made from an input.
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
