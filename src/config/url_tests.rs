//! Checks that URLs of every form are read, and that no error repeats a refused one.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proptest::prelude::*;

use super::*;

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

proptest! {
    #[test]
    fn what_is_written_encoded_is_read_as_meant(
        user in any::<Option<String>>(),
        password in any::<String>(),
        host in "[a-z0-9][a-z0-9.-]{0,20}",
        port in 1u16..,
        db in any::<u32>(),
        tls in any::<bool>(),
    ) {
        prop_assume!(!tls || tls_files::server_name(&host).is_some());
        let scheme = if tls { "rediss" } else { "redis" };
        let (name, word) = (encoded(user.as_deref().unwrap_or("")), encoded(&password));
        let url: RedisUrl = format!("{scheme}://{name}:{word}@{host}:{port}/{db}").parse().unwrap();
        prop_assert_eq!(url.tls, tls);
        prop_assert_eq!(url.username, user.filter(|user| !user.is_empty()));
        prop_assert_eq!(url.password, Some(Password::Written(password)));
        prop_assert_eq!(url.endpoint, Endpoint::Tcp { host, port });
        prop_assert_eq!(url.db, db);
    }

    #[test]
    fn every_ipv6_address_is_read_in_brackets(ip in any::<Ipv6Addr>(), port in 1u16..) {
        let url: RedisUrl = format!("redis://[{ip}]:{port}").parse().unwrap();
        prop_assert_eq!(url.to_string(), format!("[{ip}]:{port}"));
        prop_assert_eq!(url.endpoint, Endpoint::Tcp { host: ip.to_string(), port });
    }

    #[test]
    fn every_socket_path_is_read(path in "/[^\\x00]{0,40}", db in any::<u32>()) {
        for scheme in ["unix", "redis+unix"] {
            let url: RedisUrl = format!("{scheme}://{}?db={db}", path_encoded(&path)).parse().unwrap();
            prop_assert_eq!(&url.endpoint, &Endpoint::Unix(PathBuf::from(&path)));
            prop_assert_eq!(url.db, db);
        }
    }

    #[test]
    fn no_text_is_too_odd_to_be_refused_or_shown(
        text in r"(redis|unix|redis\+unix|rediss)?(://)?[\[\]@:/?%=a-z0-9]{0,24}|\PC*",
    ) {
        if let Ok(url) = text.parse::<RedisUrl>() {
            let again: RedisUrl = match url.endpoint {
                Endpoint::Tcp { .. } => format!("redis://{url}").parse().unwrap(),
                Endpoint::Unix(_) => return Ok(()),
            };
            prop_assert_eq!((again.endpoint, again.db), (url.endpoint, url.db));
        }
    }
}

/// [`encoded`], but with a plain slash at the beginning.
fn path_encoded(path: &str) -> String {
    format!("/{}", encoded(&path[1..]))
}

#[test]
fn reads_every_form() {
    let url: RedisUrl = "redis://me:p%40ss@10.0.0.1:7000/3".parse().unwrap();
    assert_eq!(url.endpoint, Endpoint::Tcp { host: "10.0.0.1".into(), port: 7000 });
    assert_eq!((url.username.as_deref(), &url.password), (Some("me"), &Some("p@ss".into())));
    assert_eq!((url.db, url.to_string()), (3, "10.0.0.1:7000/3".into()));
    let url: RedisUrl = "redis://:secret@[::1]".parse().unwrap();
    assert_eq!((url.username, url.password), (None, Some("secret".into())));
    assert_eq!(url.endpoint, Endpoint::Tcp { host: "::1".into(), port: 6379 });
    let url: RedisUrl = "unix:///run/redis.sock?db=2".parse().unwrap();
    assert_eq!((url.endpoint, url.db), (Endpoint::Unix("/run/redis.sock".into()), 2));
    assert_eq!("redis://localhost/".parse::<RedisUrl>().unwrap().to_string(), "localhost:6379");
}

#[test]
fn what_is_no_host_is_refused() {
    for bad in ["[zz]:1", "[::1", "a b:1", "a%zz", "a?db=1", "a#1", "::1:6379", "", ":6379"] {
        let url = format!("redis://{bad}");
        assert!(url.parse::<RedisUrl>().is_err(), "{url}");
    }
    assert!("redis://[fe80::1%eth0]:1".parse::<RedisUrl>().is_ok());
}

#[test]
fn a_refused_url_is_never_repeated() {
    for bad in [
        "secret",
        "http://secret@x",
        "secret://x",
        "rediss://:secret@x:0",
        "rediss://:secret@1.2.3.4.5",
        "redis://secret@x",
        "redis://:secret@",
        "redis://:secret@x:0",
        "redis://:secret@x:99999",
        "redis://:secret@x/secret",
        "redis://:secret%ff@x",
        "unix://secret",
        "unix:///x?secret=1",
        "redis://:secret@[::1]secret",
    ] {
        let error = bad.parse::<RedisUrl>().unwrap_err();
        assert!(!error.contains("secret"), "{bad}: {error}");
    }
}

/// Errors and the log show paths.
#[test]
fn a_socket_has_no_password() {
    for text in ["unix:////redis://me:secret@db:7000", "unix:///me:secret@/run/redis.sock"] {
        let error = text.parse::<RedisUrl>().unwrap_err().to_string();
        assert!(error.contains("no password") && !error.contains("secret"), "{error}");
    }
    for text in ["unix:///run/redis@1/redis.sock", "unix:///run/a:b.sock", "unix:///a%3Ab%40c"] {
        assert!(text.parse::<RedisUrl>().is_ok(), "{text}");
    }
}
