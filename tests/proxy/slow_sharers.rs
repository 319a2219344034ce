//! Clients that share connections to the data node (`share: yes`) and do not take their replies, or take them slowly:
//! what others notice of that.

use std::{
    io::Read,
    thread,
    time::{Duration, Instant},
};

use crate::{
    proxy::shared::{ms, sharing, warm},
    support::{Client, Proxy, Reply, encode, eventually},
};

/// Has the data node hold this many bytes under `big`.
fn hold_big(proxy: &Proxy, size: usize) {
    let (last, length) = ((size - 1).to_string(), Reply::Int(i64::try_from(size).unwrap()));
    assert_eq!(proxy.data_client().cmd(&["SETRANGE", "big", &last, "x"]), length);
}

/// A client on the link whose system takes next to nothing until it reads.
fn narrow(proxy: &Proxy) -> Client {
    let mut client = Client::connect_narrow(proxy.port(), 4096);
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    client
}

/// Keeps the data node busy, so that what comes meanwhile is on the link together.
pub(super) fn keep_busy(client: &mut Client, millis: u32) {
    let script = "local t = redis.call('time') local s = t[1] * 1e6 + t[2] \
        repeat t = redis.call('time') until t[1] * 1e6 + t[2] - s > ARGV[1] * 1000 return 1";
    client.send(&encode(&["EVAL", script, "0", &millis.to_string()]));
    thread::sleep(ms(50));
}

fn closed(proxy: &Proxy) -> f64 {
    proxy.metric("lockgate_closes_total", "slow_reader")
}

#[test]
fn a_client_that_does_not_read_harms_nobody_else() {
    let proxy = sharing().start();
    let size = 64 << 20;
    hold_big(&proxy, size);
    assert_eq!(proxy.data_client().cmd(&["SET", "small", "s"]), Reply::ok());
    let mut others: Vec<Client> = (0..5).map(|_| warm(&proxy)).collect();
    let mut ask_all = || {
        for other in &mut others {
            other.send(&encode(&["GET", "small"]));
        }
        for other in &mut others {
            assert_eq!(other.reply(), Reply::bulk("s"));
        }
    };
    let mut slow = warm(&proxy);
    slow.send(&encode(&["GET", "big"]));
    thread::sleep(ms(500));
    eventually("the link is the slow client's", || {
        ask_all();
        proxy.metric("lockgate_links", "") >= 2.0
    });
    // Nobody is behind it any more, so it may take its time.
    let begun = Instant::now();
    while begun.elapsed() < ms(1500) {
        ask_all();
    }
    assert!(proxy.memory("VmRSS") < 200 << 20);
    let Reply::Bulk(all) = slow.reply() else { panic!("the value") };
    assert_eq!(all.len(), size);
    assert_eq!(slow.cmd(&["GET", "small"]), Reply::bulk("s"));
    // One with others behind it, which does not read at all.
    let mut stuck = warm(&proxy);
    stuck.send(&encode(&["GET", "big"]).repeat(3));
    let begun = Instant::now();
    for _ in 0..50 {
        ask_all();
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop(stuck);
    eventually("one link is left", || proxy.metric("lockgate_links", "") <= 2.0);
}

#[test]
fn a_command_that_was_cut_goes_on_once_its_link_is_no_more_anothers() {
    let proxy = sharing().start();
    hold_big(&proxy, 60_000_000);
    assert_eq!(proxy.data_client().cmd(&["SET", "small", "s"]), Reply::ok());
    for is_pinned in [false, true] {
        let (mut stuck, mut cut) = (warm(&proxy), warm(&proxy));
        let (words, right) = match is_pinned {
            false => (&["GET", "small"][..], Reply::bulk("s")),
            true => (&["MULTI"][..], Reply::ok()),
        };
        let second = encode(words);
        let (half, rest) = second.split_at(second.len() - 3);
        stuck.send(&encode(&["GET", "big"]).repeat(2));
        cut.send(&[&encode(&["GET", "small"])[..], half].concat());
        thread::sleep(ms(300));
        cut.send(rest);
        assert_eq!(cut.reply(), Reply::bulk("s"));
        assert_eq!(cut.reply(), right);
    }
}

#[test]
fn a_client_that_reads_slowly_is_not_closed_and_one_that_does_not_read_is() {
    let proxy = sharing().start();
    hold_big(&proxy, 30_000_000);
    let memory = proxy.memory("VmRSS");
    for rate in [300_000, 1_000_000] {
        let (mut slow, mut behind) = (warm(&proxy), warm(&proxy));
        slow.send(&encode(&["GET", "big"]));
        thread::sleep(ms(5));
        behind.send(&encode(&["ECHO", "behind"]));
        let (begun, mut read, mut buffer) = (Instant::now(), 0, vec![0; rate / 20]);
        while begun.elapsed() < Duration::from_secs(8) {
            let some = slow.socket().read(&mut buffer).unwrap();
            assert!(some > 0, "closed after {read} bytes, {:?}", begun.elapsed());
            read += some;
            let due = Duration::from_secs_f64(read as f64 / rate as f64);
            thread::sleep(due.saturating_sub(begun.elapsed()));
        }
        let mut all = vec![0; b"$30000000\r\n".len() + 30_000_000 + 2 - read];
        slow.socket().read_exact(&mut all).unwrap();
        assert_eq!(behind.reply(), Reply::bulk("behind"));
        assert_eq!(slow.cmd(&["PING"]), Reply::simple("PONG"));
    }
    assert_eq!(closed(&proxy), 0.0);
    // What was taken is not kept.
    let more = proxy.memory("VmHWM") - memory;
    assert!(more < 20 << 20, "{more} bytes");
    let (mut stuck, mut behind) = (warm(&proxy), warm(&proxy));
    stuck.send(&encode(&["GET", "big"]));
    thread::sleep(ms(5));
    behind.send(&encode(&["ECHO", "behind"]));
    assert_eq!(behind.reply(), Reply::bulk("behind"));
    drop(stuck.rest());
    eventually("it is counted", || closed(&proxy) == 1.0);
    assert_eq!(proxy.metric("lockgate_closes_total", "upstream\""), 0.0);
    assert!(proxy.log().contains("too slowly"), "{}", proxy.log());
}

/// Else a reply of 60 MB, taken as slowly as may be, would last for hours.
#[test]
fn a_client_that_goes_on_to_read_slowly_does_not_keep_others_waiting_for_long() {
    let proxy = sharing().start();
    hold_big(&proxy, 60_000_000);
    let (mut slow, mut behind) = (warm(&proxy), warm(&proxy));
    slow.send(&encode(&["GET", "big"]));
    thread::sleep(ms(5));
    behind.send(&encode(&["ECHO", "behind"]));
    thread::scope(|scope| {
        scope.spawn(|| {
            // More than 64 KB in three seconds.
            let mut some = vec![0; 200_000];
            while slow.reader().read_exact(&mut some).is_ok() {
                thread::sleep(ms(1000));
            }
        });
        assert_eq!(behind.reply(), Reply::bulk("behind"));
    });
    eventually("it is counted", || closed(&proxy) == 1.0);
}

/// Each of them is held up to 4 MB, so that all the replies behind come through.
#[test]
fn what_many_clients_do_not_take_is_bounded_for_all_together() {
    let (proxy, each, most) = (sharing().start(), 4_100_000, 128 << 20);
    hold_big(&proxy, each);
    let mut clients: Vec<Client> = (0..2 * most / each).map(|_| narrow(&proxy)).collect();
    let before = proxy.memory("VmRSS");
    let mut other = warm(&proxy);
    keep_busy(&mut other, 1000);
    for client in &mut clients {
        client.send(&encode(&["GET", "big"]));
    }
    eventually("they are held, or one is closed", || {
        let held = proxy.memory("VmRSS") - before;
        assert!(held < most + most / 3, "{held} bytes");
        closed(&proxy) > 0.0
    });
}

/// Each of them goes to another link once all has come that it was owed over the first, which another has for itself.
#[test]
fn what_clients_that_go_from_link_to_link_do_not_take_is_bounded_too() {
    let proxy = sharing().start();
    proxy.data_client().cmd(&["SET", "value", &"v".repeat(8000)]);
    let mut clients: Vec<Client> = (0..60).map(|_| narrow(&proxy)).collect();
    let (mut other, before) = (warm(&proxy), proxy.memory("VmRSS"));
    keep_busy(&mut other, 500);
    for client in &mut clients {
        client.send(&encode(&["GET", "value"]).repeat(2000));
    }
    assert_eq!(other.reply(), Reply::Int(1));
    thread::sleep(Duration::from_secs(4));
    let (grown, most) = (proxy.memory("VmHWM") - before, 128 << 20);
    assert!(grown < most + most / 3, "{grown} bytes");
    drop(clients);
}

#[test]
fn who_is_behind_many_that_do_not_read_waits_little_longer_than_behind_one() {
    let proxy = sharing().start();
    hold_big(&proxy, 10_000_000);
    let (mut other, mut behind) = (warm(&proxy), warm(&proxy));
    let mut waited = |many: usize| {
        let mut clients: Vec<Client> = (0..many).map(|_| narrow(&proxy)).collect();
        keep_busy(&mut other, 300);
        for client in &mut clients {
            client.send(&encode(&["GET", "big"]));
        }
        thread::sleep(ms(50));
        let begun = Instant::now();
        assert_eq!(behind.cmd(&["ECHO", "behind"]), Reply::bulk("behind"));
        assert_eq!(other.reply(), Reply::Int(1));
        begun.elapsed()
    };
    let (one, many) = (waited(1), waited(8));
    println!("{one:?} behind one, {many:?} behind eight");
    eventually("all are closed", || closed(&proxy) == 9.0);
    assert!(many < one * 4);
}
