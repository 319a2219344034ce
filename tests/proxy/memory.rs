//! Values of any size stream through; the proxy keeps none of them.

use std::{
    io::{BufRead, BufReader, Read, Write},
    thread,
};

use crate::support::{Proxy, Reply};

/// The largest value that Redis takes (`proto-max-bulk-len`).
const VALUE: usize = 512 << 20;
/// The most memory that the proxy may take while such a value passes.
const BOUND: usize = 64 << 20;

#[test]
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
        // Each has moved something large, and then rests.
        let value = "x".repeat(100_000);
        assert_eq!(client.cmd(&["ECHO", &value]), Reply::bulk(&value));
    }
    let each = (proxy.memory("VmRSS") - before) / clients.len();
    assert!(each < 16 << 10, "{each} bytes for each idle connection");
}
