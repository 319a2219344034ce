use super::*;

fn table() -> FrontTable {
    let mut table = FrontTable::default();
    table.add("a", &["10.0.0.1", "host-a"], 7000, ShownAs::Front(6001));
    table.add("b", &["10.0.0.2"], 7000, ShownAs::Front(6002));
    table.add("f", &["proxy"], 6003, ShownAs::AsItIs);
    table
}

fn shown(reply: &str, kind: Topology) -> Option<String> {
    shown_at("192.0.2.9", reply, kind)
}

fn shown_at(host: &str, reply: &str, kind: Topology) -> Option<String> {
    let face = Face { table: &table(), host, tls: false, asked: "10.0.0.1" };
    let reply = reply.replace('\n', "\r\n");
    let changed = face.topology(reply.as_bytes(), kind)?;
    Some(String::from_utf8(changed).unwrap().replace("\r\n", "\n"))
}

#[test]
fn a_redirection_leads_to_the_front() {
    let face = Face { table: &table(), host: "192.0.2.9", tls: false, asked: "10.0.0.1" };
    let front = |line: &str| Redirected::Front(line.as_bytes().to_vec());
    for (line, told) in [
        ("-MOVED 3 10.0.0.2:7000\r\n", front("-MOVED 3 192.0.2.9:6002\r\n")),
        ("-ASK 3 host-a:7000\r\n", front("-ASK 3 192.0.2.9:6001\r\n")),
        ("-MOVED 3 :7000\r\n", front("-MOVED 3 192.0.2.9:6001\r\n")),
        ("-MOVED 3 proxy:6003\r\n", Redirected::AsItIs),
        ("-MOVED three 10.0.0.2:7000\r\n", Redirected::AsItIs),
        ("-MOVED 3 10.0.0.2:7000 more\r\n", Redirected::AsItIs),
        ("-ERR 3 10.0.0.2:7000\r\n", Redirected::AsItIs),
    ] {
        assert_eq!(face.redirect(line.as_bytes()), told, "{line}");
    }
    let Redirected::Nowhere(error) = face.redirect(b"-MOVED 3 10.0.0.3:7000\r\n") else {
        panic!("a way past the proxy")
    };
    assert!(error.starts_with(b"-TRYAGAIN ") && error.ends_with(b"\r\n"));
}

#[test]
fn may_redirect_looks_at_as_much_as_there_is() {
    for yes in ["", "-", "-M", "-MOVED ", "-MOVED 1 a:1", "-A", "-ASK 1"] {
        assert!(may_redirect(yes.as_bytes()), "{yes}");
    }
    for no in ["-ERR", "-MOVING 1", "-ASKING", "+OK"] {
        assert!(!may_redirect(no.as_bytes()), "{no}");
    }
}

#[test]
fn slots_name_fronts_and_leave_out_who_has_none() {
    // With the host's other names behind the id, in RESP2 and in RESP3.
    for more in ["*2\n$8\nhostname\n$6\nhost-a\n", "%1\n$8\nhostname\n$6\nhost-a\n"] {
        let none = &format!("{}0\n", &more[..1]);
        let reply = format!(
            "*3\n*4\n:0\n:9\n*4\n$8\n10.0.0.1\n:7000\n$1\na\n{more}*4\n$8\n10.0.0.2\n:7000\n$1\nb\n{none}\
             *4\n:10\n:19\n*4\n$8\n10.0.0.2\n:7000\n$1\nb\n{none}*4\n$8\n10.0.0.3\n:7000\n$1\nz\n{none}\
             *4\n:20\n:29\n*4\n$8\n10.0.0.3\n:7000\n$1\nz\n{none}*4\n$8\n10.0.0.1\n:7000\n$1\na\n{none}"
        );
        let told = format!(
            "*2\n*4\n:0\n:9\n*4\n$9\n192.0.2.9\n:6001\n$1\na\n{none}*4\n$9\n192.0.2.9\n:6002\n$1\nb\n{none}\
             *3\n:10\n:19\n*4\n$9\n192.0.2.9\n:6002\n$1\nb\n{none}"
        );
        assert_eq!(shown(&reply, Topology::Slots).unwrap(), told);
    }
    // Nodes of old versions have no id, and a node need not tell its host.
    let reply = "*1\n*3\n:0\n:9\n*2\n$-1\n:7000\n";
    let told = "*1\n*3\n:0\n:9\n*2\n$9\n192.0.2.9\n:6001\n";
    assert_eq!(shown(reply, Topology::Slots).unwrap(), told);
}

#[test]
fn shards_name_fronts_in_all_their_fields() {
    let node = |map: &str, id: &str| {
        format!(
            "{map}$2\nid\n$1\n{id}\n$4\nport\n:7000\n$8\ntls-port\n:7001\n$2\nip\n$8\n10.0.0.1\n\
             $8\nendpoint\n$6\nhost-a\n$8\nhostname\n$6\nhost-a\n$4\nrole\n$6\nmaster\n"
        )
    };
    for (shard, seven, five, six) in
        [("*4\n", "*14\n", "*10\n", "*12\n"), ("%2\n", "%7\n", "%5\n", "%6\n")]
    {
        let slots = "$5\nslots\n*2\n:0\n:9\n";
        let reply =
            format!("*1\n{shard}{slots}$5\nnodes\n*2\n{}{}", node(seven, "a"), node(seven, "z"));
        let told = format!(
            "*1\n{shard}{slots}$5\nnodes\n*1\n{five}$2\nid\n$1\na\n$4\nport\n:6001\n$2\nip\n$9\n192.0.2.9\n\
             $8\nendpoint\n$9\n192.0.2.9\n$4\nrole\n$6\nmaster\n"
        );
        assert_eq!(shown(&reply, Topology::Shards).unwrap(), told);
        let told = format!(
            "*1\n{shard}{slots}$5\nnodes\n*1\n{six}$2\nid\n$1\na\n$4\nport\n:6001\n$2\nip\n$5\nproxy\n\
             $8\nendpoint\n$5\nproxy\n$8\nhostname\n$5\nproxy\n$4\nrole\n$6\nmaster\n"
        );
        assert_eq!(shown_at("proxy", &reply, Topology::Shards).unwrap(), told);
    }
}

#[test]
fn lines_of_nodes_have_a_new_length() {
    let text = "a 10.0.0.1:7000@17000,host-a,shard-id=5 myself,master - 0 0 1 connected 0-9\n\
                z 10.0.0.3:7000@17000 slave a 0 0 1 connected\n\
                f proxy:6003@17000 slave a 0 0 1 connected\n";
    let told = "a 192.0.2.9:6001@0,,shard-id=5 myself,master - 0 0 1 connected 0-9\n\
                f proxy:6003@17000 slave a 0 0 1 connected\n";
    // The lines inside end with \n alone.
    let face = Face { table: &table(), host: "192.0.2.9", tls: false, asked: "10.0.0.1" };
    for (kind, format) in [('$', ""), ('=', "txt:")] {
        let wrap = |text: &str| {
            let text = format!("{format}{text}");
            format!("{kind}{}\r\n{text}\r\n", text.len())
        };
        let changed = face.topology(wrap(text).as_bytes(), Topology::Nodes).unwrap();
        assert_eq!(String::from_utf8(changed).unwrap(), wrap(told));
    }
    let line = "a 10.0.0.1:7000@17000 slave b 0 0 1 connected";
    let other = "z 10.0.0.3:7000@17000 slave b 0 0 1 connected";
    let reply = format!("*2\n${}\n{line}\n${}\n{other}\n", line.len(), other.len());
    let told = "a 192.0.2.9:6001@0 slave b 0 0 1 connected";
    let told = format!("*1\n${}\n{told}\n", told.len());
    assert_eq!(shown(&reply, Topology::Replicas).unwrap(), told);
}

#[test]
fn errors_pass_and_nothing_passes_that_is_not_read() {
    for same in ["-ERR unknown command\n", "+QUEUED\n", "_\n"] {
        assert_eq!(shown(same, Topology::Slots), None);
    }
    for garbage in
        ["$5\nhello\n", ":1\n", "*1\n:1\n", "*1\n*3\n:0\n:9\n:1\n", "*99999999999\n", "*5\n"]
    {
        for kind in [Topology::Slots, Topology::Shards, Topology::Nodes] {
            let told = shown(garbage, kind).unwrap();
            assert!(told.starts_with("-CLUSTERDOWN"), "{garbage}: {told}");
        }
    }
}

#[test]
fn only_what_was_asked_changes_in_exec() {
    let face = Face { table: &table(), host: "192.0.2.9", tls: false, asked: "10.0.0.1" };
    let line = "a 10.0.0.1:7000@17000 master - 0 0 1 connected";
    let (line, told) = (line, line.replace("10.0.0.1:7000@17000", "192.0.2.9:6001@0"));
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let exec = |changed: &str| {
        format!("*3\r\n{}>2\r\n$1\r\na\r\n*1\r\n:1\r\n{}*1\r\n:5\r\n", bulk(line), bulk(changed))
    };
    let reply = exec(line);
    let changed = face.exec(reply.as_bytes(), &[(1, Topology::Nodes)]).unwrap();
    assert_eq!(String::from_utf8(changed).unwrap(), exec(&told));
    assert_eq!(face.exec(b"*-1\r\n", &[(0, Topology::Nodes)]), None);
    assert_eq!(face.exec(b"-EXECABORT x\r\n", &[(0, Topology::Nodes)]), None);
}
