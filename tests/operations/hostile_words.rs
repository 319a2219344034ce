//! Servers and clients choose words of errors. Wherever these are shown, a terminal shows them and obeys none.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
};

use lockgate::tools::redis_server::RedisServer;

use crate::support::{Proxy, eventually};

/// The reply of a hostile server to everything: a title for the window, colours, the C1 control that begins a colour,
/// a change of the writing direction, a backspace and a vertical tab.
const ERROR: &[u8] =
    b"-ERR \x1b]0;PWNED\x07\x1b[31mred\xc2\x9b1m\xe2\x80\xae \x08\x0b<script>alert(1)</script>\r\n";

/// Starts a server that answers this on each connection. Returns its URL.
fn hostile() -> String {
    fn talk(mut stream: TcpStream) -> std::io::Result<()> {
        let mut bytes = [0; 65536];
        loop {
            let received = match stream.read(&mut bytes)? {
                0 => return Ok(()),
                length => &bytes[..length],
            };
            let commands = received.windows(2).filter(|two| two[0] == b'*' && two[1] != b'\r');
            stream.write_all(&ERROR.repeat(commands.count().max(1)))?;
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || talk(stream));
        }
    });
    format!("redis://:secret@{address}")
}

/// Checks that the shown text has the words, and nothing that a terminal obeys.
fn judge(what: &str, shown: &[u8]) {
    let text = String::from_utf8(shown.to_vec()).unwrap();
    assert!(text.contains("PWNED"), "{what}: {text}");
    let obeyed = |c: char| c.is_control() && !"\r\n".contains(c) || c == '\u{202e}';
    let found: Vec<char> = text.chars().filter(|c| obeyed(*c)).collect();
    assert!(found.is_empty(), "{what}: {found:?} in {text}");
}

#[test]
fn no_terminal_obeys_the_words_of_a_server() {
    let others = [RedisServer::start(&[]).unwrap(), RedisServer::start(&[]).unwrap()];
    let nodes = [hostile(), others[0].url(), others[1].url()];
    let mut proxy =
        Proxy::with().data_url(&hostile()).node_urls(&nodes).uninitialised().unready().start();
    let page = |path: &str| proxy.http(path).split_once("\r\n\r\n").unwrap().1.to_owned();
    eventually("both servers have had their say", || page("/readyz").matches("PWNED").count() >= 2);
    judge("/readyz", page("/readyz").as_bytes());
    judge("/api/status", page("/api/status").as_bytes());
    let status: serde_json::Value = serde_json::from_str(&page("/api/status")).unwrap();
    let mut problems = status["problems"].as_array().unwrap().iter();
    assert!(problems.any(|line| line.as_str().unwrap().contains("red\\u009b1m")), "{status}");
    eventually("they are logged", || proxy.log().matches("PWNED").count() >= 2);
    judge("the log (json)", proxy.log().as_bytes());
    let file = proxy.config_file();
    for words in [&["doctor"][..], &["doctor", "--json"], &["init"], &["nodes"]] {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        let output = tool.args(words).arg(&file).output().unwrap();
        judge(&words.join(" "), &[output.stdout, output.stderr].concat());
    }

    proxy.terminate();
    proxy.wait();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}log: {{format: human}}\n")).unwrap();
    let log = file.with_extension("human");
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_lockgate"), "--config"])
        .arg(&file)
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let read = || fs::read(&log).unwrap();
    eventually("they are logged for people", || {
        String::from_utf8_lossy(&read()).matches("PWNED").count() >= 2
    });
    judge("the log (human)", &read());
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Clients choose keys and words, and programs print errors that repeat them.
#[test]
fn no_terminal_obeys_the_words_of_a_client_that_an_error_repeats() {
    const WORD: &str = "\u{1b}]0;PWNED\u{7}\u{9b}1m\u{202e} \r\n-INJECTED";
    let rules = "adopt: [{keys: 'lock:*', lock: 'adopted-{1}', mode: enforce}]
guards: [{keys: 'guarded:*', lock: '{1}'}]";
    let proxy = Proxy::with().nodes(1).top(rules).start();
    let [adopted, guarded] = ["lock", "guarded"].map(|rule| format!("{rule}:{WORD}"));
    let mut client = proxy.client();
    let asked: [&[&str]; 12] = [
        &["SET", &adopted, "x"],
        &["INCR", &adopted],
        &["SET", &guarded, "x"],
        &["LOCK", "k", "PX", WORD],
        &["LOCK", "k", "token", WORD, "1"],
        &["LOCK", "k", "token", "WAIT", WORD],
        &["UNLOCK", "k", "token", WORD],
        &["RENEW", "k", "token", "PX", WORD],
        &["LOCKGATE", WORD],
        &["LOCKGATE", "PAUSE", WORD],
        &["LOCKGATE", "LOCKS", WORD, "1"],
        &["LOCKGATE", "UNLOCK", "k", "FENCE", WORD],
    ];
    for words in asked {
        let reply = client.cmd(words);
        // An error that does not repeat the word cannot contain it.
        let text = reply.error();
        assert!(
            text.chars().all(|c| " ".contains(c) || c.is_ascii_graphic()),
            "{words:?}: {text:?}"
        );
    }
    assert!(client.cmd(&["SET", &adopted, "x"]).error().contains("PWNED"));
}
