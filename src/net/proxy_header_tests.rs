//! Checks that the PROXY headers written here are read here, and that any bytes are either refused or read.

use proptest::prelude::*;

use super::*;

fn ends(source: &str, destination: &str) -> Ends {
    Ends { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
}

#[test]
fn mapped_addresses_are_sent_as_what_they_are_where_both_ends_allow() {
    let sent = |source, destination| {
        let mut bytes = encode(Some(ends(source, destination))).unwrap();
        let (told, end) = parse(&mut bytes).unwrap().unwrap();
        assert_eq!(end, bytes.len());
        told.unwrap()
    };
    let four = ends("10.0.0.1:1", "10.0.0.2:2");
    assert_eq!(sent("10.0.0.1:1", "10.0.0.2:2"), four);
    assert_eq!(sent("[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.2]:2"), four);
    let mixed = ends("[::ffff:10.0.0.1]:1", "[2001:db8::1]:2");
    assert_eq!(sent("[::ffff:10.0.0.1]:1", "[2001:db8::1]:2"), mixed);
}

#[test]
fn a_header_for_the_proxy_itself_has_no_addresses() {
    assert_eq!(encode(None).unwrap(), b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
}

#[test]
fn a_local_header_is_taken_whatever_family_it_claims() {
    for family in [0x00, 0x11, 0x21, 0x31, 0x77] {
        let mut bytes = [SIGNATURES[0], &[LOCAL, family, 0, 3, b'x', b'y', b'z', b'*']].concat();
        assert_eq!(parse(&mut bytes), Ok(Some((None, 19))), "{family:x}");
    }
}

proptest! {
    #[test]
    fn a_header_is_read_whole_from_every_beginning_on(
        source in any::<SocketAddr>(),
        port in any::<u16>(),
        behind in prop::collection::vec(any::<u8>(), 0..40),
        version_1 in any::<bool>(),
    ) {
        let destination = SocketAddr::new(source.ip(), port);
        let told = ProxiedAddress::stream(source, destination);
        let mut bytes = Vec::new();
        let header = ProxyHeader::with_address(told);
        if version_1 { header.encode_v1(&mut bytes) } else { header.encode_v2(&mut bytes) }.unwrap();
        let end = bytes.len();
        bytes.extend(behind);
        for length in 0..end {
            prop_assert_eq!(parse(&mut bytes[..length].to_vec()), Ok(None));
        }
        let (ends, at) = parse(&mut bytes).unwrap().unwrap();
        prop_assert_eq!(at, end);
        let ends = ends.unwrap();
        // Flow labels and scopes are not sent.
        prop_assert_eq!((ends.source.ip(), ends.source.port()), (source.ip(), source.port()));
        prop_assert_eq!(ends.destination.port(), port);
    }

    #[test]
    fn no_bytes_are_too_odd(
        signature in 0usize..3,
        rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let signature = SIGNATURES.get(signature).copied().unwrap_or_default();
        let mut bytes = [signature, &rest].concat();
        let length = bytes.len();
        if let Ok(Some((_, end))) = parse(&mut bytes) {
            prop_assert!(end <= length);
        }
    }
}
