use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::{Duration, timeout},
};

use super::*;
use crate::{
    config::{Config, DataConfig},
    net::memory::set_network,
};

/// What the simulated Sentinels name: the same master each.
type Names = watch::Sender<&'static str>;

/// A connection to a Sentinel: a question is answered, and a subscription told of each change.
async fn serve(mut stream: DuplexStream, names: Names) {
    let mut bytes = [0; 512];
    while let Ok(length @ 1..) = stream.read(&mut bytes).await {
        if bytes[..length].windows(9).any(|word| word == b"SUBSCRIBE") {
            let mut changes = names.subscribe();
            let _ = stream.write_all(b"*3\r\n$9\r\nsubscribe\r\n$2\r\n+s\r\n:1\r\n").await;
            while changes.changed().await.is_ok() {
                let _ = stream.write_all(b"*3\r\n$7\r\nmessage\r\n$2\r\n+s\r\n$1\r\nx\r\n").await;
            }
            return;
        }
        let host = *names.borrow();
        let answer = format!("*2\r\n${}\r\n{host}\r\n$4\r\n6379\r\n", host.len());
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}

/// Three Sentinels that name what is in the returned channel.
fn three() -> (Sentinels, Names) {
    let names = watch::Sender::new("a");
    let served = names.clone();
    set_network(Some(Box::new(move |_| {
        let (here, there) = duplex(4096);
        tokio::spawn(serve(there, served.clone()));
        Ok(here)
    })));
    let text = "data: {sentinels: [simulated-1, simulated-2, simulated-3], master: m}";
    let config = Config::parse(text, "f", &|_| None).unwrap();
    let DataConfig::Sentinels(master) = &config.data else { panic!("{config:?}") };
    let connector = Connector::start("sentinel", &config.tls, &[]);
    (Sentinels::start(master, &connector, false), names)
}

async fn named(sentinels: &Sentinels, host: &str) -> NamedMaster {
    let mut changes = sentinels.changes();
    let is = |named: &Option<NamedMaster>| named.as_ref().is_some_and(|n| n.address.host == host);
    changes.wait_for(is).await.unwrap().clone().unwrap()
}

#[tokio::test(start_paused = true)]
async fn news_of_a_switch_has_all_sentinels_asked_at_once() {
    let (sentinels, names) = three();
    named(&sentinels, "a").await;
    // Between two polls.
    sleep(POLL / 2).await;
    names.send_replace("b");
    timeout(POLL / 4, named(&sentinels, "b")).await.unwrap();
    assert_eq!(sentinels.problem(), None);
    assert!(sentinels.troubles().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_master_is_named_anew_while_nothing_changes() {
    let (sentinels, _names) = three();
    let begun = Instant::now();
    let first = named(&sentinels, "a").await;
    assert!(first.asked >= begun);
    let changes = sentinels.changes();
    for _ in 0..5 {
        sleep(2 * POLL).await;
        let age = sentinels.named().unwrap().asked.elapsed();
        assert!(age <= POLL + 2 * GAP, "{age:?}");
    }
    assert!(!changes.has_changed().unwrap(), "it is the same master");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_wanted_does_not_wait_for_the_poll() {
    let (sentinels, names) = three();
    named(&sentinels, "a").await;
    sleep(POLL / 2).await;
    let before = sentinels.named().unwrap().asked;
    sentinels.ask_now();
    sleep(Duration::from_millis(1)).await;
    assert!(sentinels.named().unwrap().asked > before);
    drop(names);
}
