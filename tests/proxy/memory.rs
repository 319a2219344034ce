//! Values of any size stream through the proxy, which keeps none of them.

use std::{
    io::{BufRead, BufReader, Read, Write},
    thread,
};

use crate::support::{Proxy, Reply, encode};

/// The largest value that Redis accepts (`proto-max-bulk-len`).
const VALUE: usize = 512 << 20;
/// The most memory that the proxy may take while such a value passes.
const BOUND: usize = 64 << 20;

#[test]
#[ignore = "takes long: make long"]
fn a_value_of_512_mb_passes_both_ways_in_less_than_64() {
    let proxy = Proxy::start();
    let client = proxy.client();
    let mut writer = client.socket().try_clone().unwrap();
    let mut reader = BufReader::with_capacity(1 << 20, client.socket().try_clone().unwrap());
    let block: Vec<u8> = (0..1 << 20).map(|n: u32| ((n * 31) >> 3) as u8).collect();

    writer.write_all(format!("*3\r\n$3\r\nSET\r\n$1\r\nv\r\n${VALUE}\r\n").as_bytes()).unwrap();
    for _ in 0..VALUE / block.len() {
        writer.write_all(&block).unwrap();
    }
    writer.write_all(b"\r\n").unwrap();
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "+OK\r\n");

    let getting =
        thread::spawn(move || writer.write_all(b"*2\r\n$3\r\nGET\r\n$1\r\nv\r\n").map(|()| writer));
    line.clear();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, format!("${VALUE}\r\n"));
    let mut received = vec![0; block.len()];
    for number in 0..VALUE / block.len() {
        reader.read_exact(&mut received).unwrap();
        assert!(received == block, "block {number} differs");
    }
    drop(getting.join().unwrap().unwrap());
    let peak = proxy.memory("VmHWM");
    assert!(peak < BOUND, "{} MB at the peak", peak >> 20);
}

#[test]
fn an_idle_connection_costs_no_buffer() {
    let proxy = Proxy::with().top("maxclients: 2000").start();
    let before = proxy.memory("VmRSS");
    let mut clients: Vec<_> = (0..500).map(|_| proxy.client()).collect();
    for client in &mut clients {
        // Each client has moved something large, and then rests.
        let value = "x".repeat(100_000);
        assert_eq!(client.cmd(&["ECHO", &value]), Reply::bulk(&value));
    }
    let each = (proxy.memory("VmRSS") - before) / clients.len();
    assert!(each < 16 << 10, "{each} bytes for each idle connection");
}

#[test]
fn an_idle_client_takes_less_than_3_kb_and_one_that_shares_less_than_2() {
    for (share, most) in [("no", 3000), ("yes", 2000)] {
        // The first client of each thread also takes what the thread needs.
        let proxy = Proxy::with().top(&format!("share: {share}\nio_threads: 1")).start();
        // One after the other: what clients take while they come is no part of this.
        let come = |count| -> Vec<_> {
            let one = |_| {
                let mut client = proxy.client();
                // As libraries come.
                assert!(matches!(client.cmd(&["HELLO", "3"]), Reply::Map(_)));
                client.cmd(&["CLIENT", "SETINFO", "LIB-NAME", "some"]);
                assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
                client
            };
            (0..count).map(one).collect()
        };
        // With the first ones comes what the process needs once.
        let _first = come(100);
        let before = proxy.memory("VmRSS");
        let clients = come(1000);
        let each = (proxy.memory("VmRSS") - before) / clients.len();
        println!("{each} bytes for each idle client, share: {share}");
        assert!(each < most, "{each} bytes for each idle client, share: {share}");
    }
}

/// Returns the most memory beyond that of an idle proxy while `clients` clients send a command at the same time, and
/// their replies.
fn peak_of(clients: usize, command: &[u8]) -> (usize, Vec<Reply>) {
    let rules = "guards: {max_command: 8mb, rules: [{keys: 'g:*', lock: 'l:{1}'}]}";
    let proxy = Proxy::with().top(rules).start();
    let mut all: Vec<_> = (0..clients).map(|_| proxy.client()).collect();
    all[0].cmd(&["PING"]);
    let before = proxy.memory("VmRSS");
    let (begin, end) = command.split_at(command.len() - 3);
    for client in &mut all {
        client.send(begin);
    }
    for client in &mut all {
        client.send(end);
    }
    let answers = all.iter_mut().map(|client| client.reply()).collect();
    (proxy.memory("VmHWM").saturating_sub(before), answers)
}

#[test]
fn a_guarded_command_costs_at_most_twice_its_bytes_however_it_is_made() {
    let small = ["GET", "a"].repeat(400_000);
    let sort = encode(&[&["SORT", "k"], &small[..]].concat());
    let keys = encode(&[&["DEL", "g:1"], &["a"; 250_000][..]].concat());
    let value = encode(&["SET", "g:1", &"x".repeat(6 << 20)]);
    let migrate =
        encode(&[&["MIGRATE", "h", "1", "", "0", "9", "KEYS"], &["a"; 400_000][..]].concat());
    for (command, error) in [
        (sort, "ERR too much in one command"),
        (migrate, "ERR too much in one command"),
        (keys, "NOTHELD"),
        (value, "NOTHELD"),
    ] {
        let (clients, length) = (8, command.len());
        let (peak, answers) = peak_of(clients, &command);
        for answer in answers {
            assert!(answer.error().starts_with(error), "{answer:?}");
        }
        // The proxy's threads need space to look at a command, one each, and so does the allocator.
        let bound = 2 * clients * length + (32 << 20);
        assert!(peak <= bound, "{} KB for {clients} of {} KB", peak >> 10, length >> 10);
    }
}

#[test]
fn the_data_node_is_asked_only_about_commands_of_ordinary_size() {
    let rules = "guards: [{keys: 'g:*', lock: 'l:{1}'}]";
    let proxy = Proxy::with().top(rules).start();
    let mut client = proxy.client();
    let sort = |words: usize| [&["SORT", "k"], &["GET", "a"].repeat(words / 2 - 1)[..]].concat();
    assert_eq!(client.cmd(&sort(1000)), Reply::Array(Vec::new()));
    assert!(client.cmd(&sort(1002)).error().starts_with("ERR too much in one command"));
    let long = "x".repeat(64 << 10);
    assert!(client.cmd(&["SORT", &long]).error().starts_with("ERR too much in one command"));
    assert_eq!(client.cmd(&["SORT", &long[8..]]), Reply::Array(Vec::new()));
}
