use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::{Duration, timeout},
};

use super::*;
use crate::{
    config::{Config, DataConfig},
    net::memory_stream::set_network,
};

/// What the simulated Sentinels name: the same master each.
type Names = watch::Sender<&'static str>;

/// Serves one connection to a Sentinel: answers each question, and publishes each change to a subscription.
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

/// Starts three Sentinels that name what is in the returned channel.
fn three() -> (Sentinels, Names) {
    let names = watch::Sender::new("a");
    let served = names.clone();
    set_network(Some(Box::new(move |_| {
        let (here, there) = duplex(4096);
        tokio::spawn(serve(there, served.clone()));
        Ok(here)
    })));
    (start(), names)
}

/// Asks the Sentinels at three simulated hosts.
fn start() -> Sentinels {
    let text = "data: {sentinels: [simulated-1, simulated-2, simulated-3], master: m}";
    let config = Config::parse(text, "f", &|_| None).unwrap();
    let DataConfig::Sentinels(master) = &config.data else { panic!("{config:?}") };
    let connector = Connector::start("sentinel", &config.tls, &[]);
    Sentinels::start(master, &connector, false)
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

#[tokio::test(start_paused = true)]
async fn a_sentinel_under_two_names_has_one_voice_whichever_answers_first() {
    for late in ["simulated-1", "simulated-2"] {
        set_network(Some(Box::new(move |host: &str| {
            let (here, mut there) = duplex(4096);
            let wait = Duration::from_millis(if host == late { 500 } else { 0 });
            let third = host == "simulated-3";
            tokio::spawn(async move {
                let mut bytes = [0; 512];
                sleep(wait).await;
                while let Ok(length @ 1..) = there.read(&mut bytes).await {
                    let asks_id = bytes[..length].windows(4).any(|word| word == b"MYID");
                    let answer: &[u8] = match (asks_id, third) {
                        (true, false) => b"$2\r\nid\r\n",
                        (true, true) => b"$5\r\nother\r\n",
                        (false, false) => b"*2\r\n$1\r\na\r\n$4\r\n6379\r\n",
                        (false, true) => b"*2\r\n$1\r\nb\r\n$4\r\n6379\r\n",
                    };
                    let _ = there.write_all(answer).await;
                }
            });
            Ok(here)
        })));
        let sentinels = start();
        let mut changes = sentinels.changes();
        let named = timeout(10 * POLL, changes.wait_for(Option::is_some)).await;
        assert!(named.is_err(), "{late} is late");
        let told = sentinels.problem().unwrap();
        assert!(told.contains("simulated-2:26379: it is the Sentinel at"), "{told}");
    }
}
