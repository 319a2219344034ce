//! Bad input gets Redis's error and affects no other client, and memory stays bounded.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use crate::support::{Proxy, Reply, encode, eventually};

/// More memory than any of these tests needs, and far less than is sent to the proxy.
const BOUND: usize = 48 << 20;

/// Runs `attack` while another client's commands and locks work as ever.
fn while_another_works(attack: impl FnOnce(&Proxy)) {
    // The nodes are given much time: the machine may be busy with other tests.
    let mut proxy = Proxy::with().locks("node_timeout: 5s").locks("node_silence: 6s").start();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut client = proxy.client();
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) || rounds < 20 {
                assert_eq!(client.cmd(&["ECHO", "still here"]), Reply::bulk("still here"));
                client.cmd(&["LOCK", "mine", "PX", "10000"]).grant();
                assert_eq!(client.cmd(&["UNLOCK", "mine"]), Reply::Int(1));
                rounds += 1;
                thread::sleep(Duration::from_millis(1));
            }
        });
        let attacked = catch_unwind(AssertUnwindSafe(|| attack(&proxy)));
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
        if let Err(panic) = attacked {
            resume_unwind(panic);
        }
    });
    assert!(proxy.is_alive());
    let peak = proxy.memory("VmHWM");
    assert!(peak < BOUND, "{} MB at the peak", peak >> 20);
}

#[test]
fn malformed_frames_and_absurd_lengths_are_for_redis_to_refuse() {
    while_another_works(|proxy| {
        for (bytes, error) in [
            ("*2147483648\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
            ("*1\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
            ("*1\r\n$99999999999\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
            ("*1\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'\r\n"),
            ("SET a \"b\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
            (
                "*3\r\n$4\r\nLOCK\r\n$1\r\na\r\n$x\r\n",
                "-ERR Protocol error: invalid bulk length\r\n",
            ),
        ] {
            let mut client = proxy.client();
            client.send(bytes.as_bytes());
            assert_eq!(client.rest(), (error.as_bytes().to_vec(), true), "{bytes:?}");
        }
        // The proxy leaves it to Redis how long a value may be.
        assert_eq!(proxy.metric("lockgate_protocol_errors_total", ""), 5.0);
    });
}

#[test]
fn a_nesting_that_would_crash_a_recursive_decoder_is_only_an_error() {
    while_another_works(|proxy| {
        let nested = b"*1\r\n".repeat(100_000);
        for before in [b"".as_slice(), b"*2\r\n$4\r\nLOCK\r\n", b"*2\r\n$3\r\nGET\r\n"] {
            let mut client = proxy.client();
            client.send(&[before, &nested].concat());
            let mut answer = vec![0; 26];
            client.socket().try_clone().unwrap().read_exact(&mut answer).unwrap();
            assert_eq!(String::from_utf8_lossy(&answer), "-ERR Protocol error: expec");
        }
        let mut client = proxy.client();
        let value = String::from_utf8(nested.clone()).unwrap();
        assert!(matches!(client.cmd(&["LOCK", &value, "PX", "1000"]), Reply::Error(_)));
        assert!(matches!(client.cmd(&["LOCK", "k", &value, "PX", "1000"]), Reply::Error(_)));
        assert_eq!(client.cmd(&["ECHO", &value]), Reply::bulk(&value));
    });
}

#[test]
fn a_data_node_that_answers_nesting_or_garbage_is_only_passed_on() {
    let nested = b"*1\r\n".repeat(100_000);
    for answer in [nested, vec![b'x'; 300_000], b"$99999999999999999999\r\nabc".to_vec()] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let expected = answer.clone();
        thread::spawn(move || {
            // No real Redis can be made to answer like this.
            while let Ok((mut stream, _)) = listener.accept() {
                let answer = answer.clone();
                thread::spawn(move || {
                    let mut request = [0; 1000];
                    if stream.read(&mut request).is_ok_and(|n| n > 0) {
                        let _ = stream.write_all(&answer);
                    }
                });
            }
        });
        let mut proxy = Proxy::with().data_port(port).start();
        let mut client = proxy.client();
        client.send(&encode(&["PING"]));
        assert!(client.rest().0 == expected, "the bytes differ");
        assert!(proxy.is_alive() && proxy.memory("VmHWM") < BOUND);
    }
}

#[test]
fn an_endless_line_is_refused_and_not_kept() {
    while_another_works(|proxy| {
        let mut client = proxy.client();
        let line = vec![b'a'; 1 << 16];
        let mut stream = client.socket().try_clone().unwrap();
        for _ in 0..100 {
            if stream.write_all(&line).is_err() {
                break;
            }
        }
        let (bytes, _) = client.rest();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(
            text.is_empty() || text == "-ERR Protocol error: too big inline request\r\n",
            "{text}"
        );
    });
}

#[test]
fn an_oversized_lock_is_dropped_as_it_comes() {
    while_another_works(|proxy| {
        let mut client = proxy.client();
        client.send(format!("*4\r\n$4\r\nLOCK\r\n${}\r\n", 200 << 20).as_bytes());
        let block = vec![b'k'; 1 << 20];
        for _ in 0..200 {
            client.send(&block);
        }
        client.send(b"\r\n$2\r\nPX\r\n$4\r\n1000\r\n");
        client.send(&encode(&["PING"]));
        let error = "ERR key or token is too long (locks.max_key, locks.max_token)";
        assert_eq!(client.reply().error(), error);
        assert_eq!(client.reply(), Reply::simple("PONG"));
        // Inside MULTI it also spoils the transaction.
        client.cmd(&["MULTI"]);
        client.send(&encode(&["LOCK", &"x".repeat(100_000)]));
        assert!(client.reply().error().starts_with("ERR unknown command"));
        assert!(client.cmd(&["EXEC"]).error().starts_with("EXECABORT"));
    });
}

#[test]
fn one_byte_at_a_time_is_enough() {
    while_another_works(|proxy| {
        let mut client = proxy.client();
        let bytes = [
            encode(&["SET", "slow", "value"]),
            encode(&["LOCK", "slow", "t", "PX", "30000"]),
            b"UNLOCK slow t\r\n".to_vec(),
        ]
        .concat();
        for byte in bytes {
            client.send(&[byte]);
            thread::sleep(Duration::from_micros(300));
        }
        assert_eq!(client.reply(), Reply::ok());
        client.reply().grant();
        assert_eq!(client.reply(), Reply::Int(1));
    });
}

#[test]
fn clients_that_never_read_hold_no_memory_here() {
    while_another_works(|proxy| {
        proxy.client().cmd(&["SET", "big", &"x".repeat(1 << 20)]);
        let mut greedy: Vec<_> = (0..4).map(|_| proxy.client()).collect();
        for client in &mut greedy {
            for _ in 0..50 {
                client.send(&encode(&["GET", "big"]));
            }
        }
        thread::sleep(Duration::from_millis(300));
        assert!(proxy.memory("VmRSS") < BOUND);
        // Nothing was lost on the way.
        for client in &mut greedy {
            for _ in 0..50 {
                assert!(matches!(client.reply(), Reply::Bulk(value) if value.len() == 1 << 20));
            }
        }
    });
}

#[test]
fn a_flood_behind_a_slow_lock_is_not_kept() {
    let mut proxy = Proxy::with().locks("node_timeout: 2s").locks("node_silence: 4s").start();
    proxy.node(0).freeze().unwrap();
    let mut client = proxy.client();
    let mut writer = client.socket().try_clone().unwrap();
    let value = "x".repeat(1 << 20);
    thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&encode(&["LOCK", "k", "PX", "30000"])).unwrap();
            let echo = encode(&["ECHO", &value]);
            for _ in 0..100 {
                writer.write_all(&echo).unwrap();
            }
        });
        assert!(client.reply().error().starts_with("NOQUORUM"));
        for _ in 0..100 {
            assert!(matches!(client.reply(), Reply::Bulk(echoed) if echoed.len() == value.len()));
        }
    });
    let peak = proxy.memory("VmHWM");
    assert!(proxy.is_alive() && peak < BOUND, "{} MB at the peak", peak >> 20);
}

#[test]
fn a_flood_of_state_changing_commands_is_bounded() {
    while_another_works(|proxy| {
        let mut client = proxy.client();
        // The client writes without reading; the proxy stops following replies, but the bytes still pass.
        let pair = [encode(&["MULTI"]), encode(&["EXEC"])].concat().repeat(1000);
        let mut writer = client.socket().try_clone().unwrap();
        let writing = thread::spawn(move || {
            for _ in 0..100 {
                writer.write_all(&pair).unwrap();
            }
        });
        for _ in 0..100_000 {
            assert_eq!(client.reply(), Reply::ok());
            assert_eq!(client.reply(), Reply::Array(Vec::new()));
        }
        writing.join().unwrap();
    });
}

#[test]
fn half_closed_and_half_open_connections_go_away() {
    while_another_works(|proxy| {
        for _ in 0..50 {
            let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            drop(stream);
        }
        let mut client = proxy.client();
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100\r\nhalf a value");
        client.hang_up();
        assert_eq!(client.rest(), (Vec::new(), true));
        eventually("all are gone", || proxy.metric("lockgate_client_connections", "") <= 1.0);
    });
}
