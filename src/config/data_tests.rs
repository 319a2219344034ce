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
        ("{sentinels: [a, b, 'A:26379'], master: m}", "one of them is there twice"),
        ("{sentinels: ['redis://:s3cr3t@a'], master: m}", "write host:port"),
        ("{sentinels: ['a:0'], master: m}", "port"),
        ("{sentinels: [a], master: m, username: u}", "give password or password_file"),
        ("{url: 'redis://a', username: u}", "give password or password_file"),
        ("{url: 'redis://:s3cr3t@a', password: b}", "leave one out"),
        ("{url: 'redis://a', password: b, password_file: /c}", "there is password too"),
        ("{url: 'redis://a', password_file: /none/s}", "/none/s: cannot be read: entity not found"),
        ("{url: 'redis://a', tls: yes}", "has no effect beside url"),
        ("{primary: 'redis://a', master: m}", "has no effect beside primary"),
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
fn what_is_wrong_with_a_front_that_is_named_is_told_with_its_node() {
    let [one, two] = ["a", "1"].map(|digit| digit.repeat(40));
    let wanted = "where a node's id is wanted: 40 digits and letters from a to f, in quotes, as \
                  CLUSTER MYID tells";
    let port = "where the port of its front is wanted";
    for (fronts, told) in [
        (
            format!("{{{one}: 2, '{two}': 2}}"),
            format!(".{two}: 2 is the port of another node's front"),
        ),
        (
            format!("{{{one}: 3}}"),
            format!(".{one}: 3 is the port of no front; give one of those in"),
        ),
        (format!("{{{one}: 66000}}"), format!(".{one}: 66000 {port}")),
        (format!("{{{one}: -1}}"), format!(".{one}: -1 {port}")),
        (format!("{{{one}: 'x:7'}}"), format!(".{one}: 'x:7' {port}")),
        (format!("{{{two}: 1}}"), format!(": 1.1111111111111112e39 {wanted}")),
        ("{AA: 1}".into(), format!(": 'AA' {wanted}")),
        ("[1]".into(), ": a list where a mapping from nodes' ids to the ports of their".into()),
    ] {
        let text = format!(
            "listen: 127.0.0.1:1-2\ndata: {{cluster: a, fronts: {fronts}}}\n\
             locks: {{nodes: redis://10.0.0.9}}\n"
        );
        let error = Config::parse(&text, "f", &|_| None).unwrap_err().to_string();
        let told = format!("f:2: data.fronts{told}");
        assert!(error.contains(&told), "{told}\n{error}");
    }
}

#[test]
fn a_cluster_has_a_front_for_each_node_that_is_named() {
    let at = |listen: &str, data: &str, more: &str| {
        let text =
            format!("listen: {listen}\ndata: {data}\n{more}locks: {{nodes: redis://10.0.0.9}}\n");
        Config::parse(&text, "f", &|_| Some("s3cr3t".into())).map_err(|errors| errors.to_string())
    };
    let two = "{cluster: [a, 'b:7'], username: u, password: '${SECRET}', announce: proxy.example}";
    let config = at("127.0.0.1:7100-7102", two, "").unwrap();
    let ports: Vec<u16> = config.listen.iter().map(|listener| listener.address.port()).collect();
    assert_eq!(ports, [7100, 7101, 7102]);
    let cluster = config.data.cluster().unwrap();
    assert_eq!(cluster.nodes[0], "redis://u:s3cr3t@a:6379".parse().unwrap());
    assert_eq!(cluster.at("10.0.0.1", 9), "redis://u:s3cr3t@10.0.0.1:9".parse().unwrap());
    assert_eq!(cluster.announce, Announce::Host("proxy.example".into()));
    assert_eq!(config.data.to_string(), "cluster (a:6379, b:7)");
    assert!(
        at("127.0.0.1:1-2", "{cluster: a}", "").unwrap().notes().join("\n").contains("one node")
    );
    for (announce, read) in [("auto", Announce::Reached), ("off", Announce::Nodes)] {
        let data = format!("{{cluster: a, announce: {announce}}}");
        assert_eq!(at("127.0.0.1:1", &data, "").unwrap().data.cluster().unwrap().announce, read);
    }
    let ids = ["a", "1"].map(|digit| digit.repeat(40));
    let [one, two] = &ids;
    let data = format!("{{cluster: a, fronts: {{{one}: 2, '{two}': 1}}}}");
    let named = at("127.0.0.1:1-2", &data, "").unwrap();
    let expected = [(one.clone(), 2), (two.clone(), 1)];
    assert_eq!(named.data.cluster().unwrap().fronts, expected);
    let guard = "guards: {rules: [{keys: 'a:*', lock: '{1}'}]}\n";
    let bridge = "adopt: {keys: 'l:*', mode: bridge}\n";
    for (listen, data, more, what) in [
        (
            "127.0.0.1:1",
            "{cluster: [a, b]}",
            "",
            "1 fronts for a cluster of which data.cluster names 2",
        ),
        ("127.0.0.1:9-1", "{cluster: [a]}", "", "is no range of ports"),
        ("127.0.0.1:1-9999", "{cluster: [a]}", "", "is no range of ports"),
        ("127.0.0.1:1-2", "{cluster: []}", "", "no node"),
        ("127.0.0.1:1-2", "{cluster: ['redis://:s3cr3t@a']}", "", "write host:port"),
        ("127.0.0.1:1-2", "{cluster: [a, 'a:6379']}", "", "is there twice"),
        ("127.0.0.1:1-2", "{cluster: ['[::1]', 'localhost:6379']}", "", "is there twice"),
        (
            "127.0.0.1:1-2",
            "{cluster: a, master: m}",
            "",
            "data.master: has no effect beside cluster",
        ),
        ("127.0.0.1:1-2", "{cluster: a, announce: 'b:7'}", "", "is neither auto nor off"),
        ("127.0.0.1:1-2", "{cluster: a, announce: 'OFF'}", "", "is neither auto nor off"),
        ("127.0.0.1:1-2", "{cluster: a, announce: 0.0.0.0}", "", "is neither auto nor off"),
        ("[127.0.0.1:7, 127.0.0.2:7]", "{cluster: a}", "", "two fronts have port 7"),
        ("127.0.0.1:1-2", "{cluster: ['127.0.0.1:2']}", "", "is this proxy itself"),
        ("127.0.0.1:1-2", "{primary: 'redis://a', announce: b}", "", "has no effect"),
        ("127.0.0.1:1-2", "{primary: 'redis://a', fronts: {}}", "", "has no effect"),
        (
            "[127.0.0.1:7, 127.0.0.2:7]",
            "{cluster: a, announce: off, fronts: {aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa: 7}}",
            "",
            "7 is in listen more than once; which front is meant?",
        ),
        (
            "127.0.0.1:1-2",
            "{cluster: a}",
            guard,
            "a lock must be in the slot of each key that it guards",
        ),
        (
            "127.0.0.1:1-2",
            "{cluster: a}",
            bridge,
            "mode bridge does not work with data.cluster yet",
        ),
    ] {
        let error = at(listen, data, more).unwrap_err();
        assert!(error.contains(what), "{listen} {data}: {error}");
        assert!(!error.contains("s3cr3t"), "{error}");
    }
    let audit = "guards: {rules: [{keys: 'a:*', lock: '{1}', policy: audit}]}\n";
    assert!(at("127.0.0.1:1-2", "{cluster: a}", audit).is_ok());
    // The lock is in the slot of every key that the rule matches, or the rule is refused.
    for (keys, lock, is_sound) in [
        ("a:*", "a:{1}", true),
        ("a:*:*", "a:{1}:{2}", true),
        ("a:*:*", "a:{2}:{1}", false),
        ("a:*", "b:{1}", false),
        ("a:[0-9]*", "a:{1}", false),
        ("a", "a", true),
        ("a", "b", false),
        ("a:{*}:*", "b:{{1}}", true),
        ("a:{*}:?", "{{1}}:x", true),
        ("a:{*}:*", "a:{1}", false),
        ("a:{*}:*", "a:{{2}}", false),
        ("a:{u*:*}*", "{u{1}:{2}}", true),
        ("a:{u*:*}*", "{u{1}}", false),
        ("a:{[a-z]}", "a:{x}", false),
        ("{x}:*", "{x}", true),
        ("{x}:*", "y{x}:{1}", true),
        ("{}:*", "{}y", false),
        ("*{x}", "{x}", false),
        ("a{*", "a{b", false),
        ("a:{*}:*", "{1}:{{1}}", false),
    ] {
        let lock = lock.replace("{}", "\\{\\}").replace("a{b", "a\\{b");
        let guard = format!("guards: [{{keys: '{keys}', lock: '{lock}'}}]\n");
        let checked = at("127.0.0.1:1-2", "{cluster: a}", &guard);
        assert_eq!(checked.is_ok(), is_sound, "{keys} {lock}: {checked:?}");
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
