use super::{super::Config, *};

fn parse(data: &str) -> Result<Config, String> {
    let text = format!("data: {data}\nlocks: {{nodes: redis://10.0.0.9}}\n");
    Config::parse(&text, "f", &|name| (name == "SECRET").then(|| "s3cr3t".to_owned()))
        .map_err(|errors| errors.to_string())
}

fn data(data: &str) -> DataConfig {
    parse(data).unwrap().data
}

#[test]
fn sentinels_have_their_port_and_one_login_and_the_master_another() {
    let read = data(
        "{sentinels: [a, 'b:7', '[::1]:8'], master: m-1, username: u, password: '${SECRET}', \
         sentinel_password: '$$x', sentinel_tls: yes}",
    );
    let DataConfig::Sentinels(master) = &read else { panic!("{read:?}") };
    let urls = ["rediss://:$x@a:26379", "rediss://:$x@b:7", "rediss://:$x@[::1]:8"];
    assert_eq!(master.sentinels, urls.map(|url| url.parse().unwrap()));
    assert_eq!(master.at("10.0.0.1", 9), "redis://u:s3cr3t@10.0.0.1:9".parse().unwrap());
    assert!(read.uses_tls() && read.fixed().is_none());
    let shown = format!("{read} {read:?}");
    assert!(shown.contains("m-1 (Sentinels a:26379, b:7, [::1]:8)"), "{shown}");
    assert!(!shown.contains("s3cr3t") && !shown.contains("$x"), "{shown}");
}

#[test]
fn a_name_is_followed_and_an_address_is_not() {
    assert_eq!(data("redis://a"), DataConfig::Fixed("redis://a".parse().unwrap()));
    let named = data("{primary: 'rediss://u:p@db.internal:7'}");
    assert_eq!(named, DataConfig::Primary("rediss://u:p@db.internal:7".parse().unwrap()));
    for (text, what) in [
        ("{primary: 'redis://10.0.0.1'}", "10.0.0.1:6379 is no name"),
        ("{primary: 'redis://[::1]'}", "is no name"),
        ("{primary: 'unix:///a'}", "is no name"),
        ("{primary: 'redis://a/1'}", "clients choose theirs with SELECT"),
        ("{primary: 'redis://a', tls: yes}", "data.tls: has no effect beside primary"),
        ("{primary: 'redis://a', sentinels: [b], master: m}", "there are sentinels too"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(what), "{text}: {error}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused_and_no_secret_is_repeated() {
    for (text, what) in [
        ("{}", "data: has neither primary nor sentinels"),
        ("{sentinels: [a]}", "data.master: is missing"),
        ("{sentinels: [], master: m}", "no Sentinel"),
        ("{sentinels: [a], master: ''}", "is no name"),
        ("{sentinels: [a], master: a b}", "is no name"),
        ("{sentinels: [a, 'a:26379'], master: m}", "one of them is there twice"),
        ("{sentinels: ['redis://:s3cr3t@a'], master: m}", "write host:port"),
        ("{sentinels: ['a:0'], master: m}", "port"),
        ("{sentinels: [a], master: m, username: u}", "give password"),
        ("{sentinels: [a], master: m, sentinel_username: u}", "give sentinel_password"),
        ("{sentinels: [a], master: m, password: 3771}", "is not text"),
        ("{sentinels: [a], mastr: m}", "did you mean master?"),
        ("{sentinels: ['127.0.0.1:6380'], master: m}", "is this proxy itself"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(what), "{text}: {error}");
        assert!(!error.contains("s3cr3t") && !error.contains("3771"), "{error}");
    }
}

#[test]
fn too_few_sentinels_are_noted() {
    let notes = |text: &str| parse(text).unwrap().notes().join("\n");
    assert!(notes("{sentinels: [a], master: m}").contains("one Sentinel"));
    assert!(
        notes("{sentinels: [a, b], master: m}").contains("2 Sentinels; a majority of them is 2")
    );
    assert!(!notes("{sentinels: [a, b, c], master: m}").contains("data.sentinels"));
}
