//! Encodes the few replies and commands that are the proxy's own.

/// Appends a bulk string.
pub fn bulk(out: &mut Vec<u8>, value: &[u8]) {
    head(out, b'$', value.len() as i64);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a bulk string that is a number.
pub(crate) fn bulk_number(out: &mut Vec<u8>, number: u64) {
    bulk(out, itoa::Buffer::new().format(number).as_bytes());
}

/// Appends a bulk string that consists of two parts.
pub(crate) fn bulk_of_two(out: &mut Vec<u8>, first: &[u8], second: &[u8]) {
    head(out, b'$', (first.len() + second.len()) as i64);
    out.extend_from_slice(first);
    out.extend_from_slice(second);
    out.extend_from_slice(b"\r\n");
}

/// Appends an integer.
pub(crate) fn integer(out: &mut Vec<u8>, value: i64) {
    head(out, b':', value);
}

/// Appends the head of an array of `length` elements.
pub fn array(out: &mut Vec<u8>, length: usize) {
    head(out, b'*', length as i64);
}

/// Appends a status. It must not contain line ends.
pub(crate) fn simple(out: &mut Vec<u8>, text: &str) {
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends the head of a map of `length` fields: an array of twice as many in RESP2.
pub(crate) fn map(out: &mut Vec<u8>, length: usize, resp3: bool) {
    if resp3 { head(out, b'%', length as i64) } else { array(out, 2 * length) }
}

/// Appends the head of a set of `length` elements: an array in RESP2.
pub(crate) fn set(out: &mut Vec<u8>, length: usize, resp3: bool) {
    head(out, if resp3 { b'~' } else { b'*' }, length as i64);
}

/// Appends null in the place of a map.
pub(crate) fn null(out: &mut Vec<u8>, resp3: bool) {
    out.extend_from_slice(if resp3 { b"_\r\n" } else { b"$-1\r\n" });
}

/// Appends the head of a push of `length` elements, which only RESP3 has.
pub(crate) fn push(out: &mut Vec<u8>, length: usize) {
    head(out, b'>', length as i64);
}

/// Appends the null array: `*-1` in RESP2, `_` in RESP3.
pub(crate) fn null_array(out: &mut Vec<u8>, resp3: bool) {
    out.extend_from_slice(if resp3 { b"_\r\n" } else { b"*-1\r\n" });
}

/// Appends an error. Its text must begin with the code, as in `ERR syntax error`. Line ends in the text become
/// spaces, as they would end the frame.
pub fn error(out: &mut Vec<u8>, text: &str) {
    out.push(b'-');
    out.extend(text.bytes().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { b }));
    out.extend_from_slice(b"\r\n");
}

/// Appends an error like [`error`], from a text that need not be UTF-8.
pub(crate) fn error_bytes(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'-');
    out.extend(text.iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }));
    out.extend_from_slice(b"\r\n");
}

/// Appends a command as an array of bulk strings.
pub fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    array(out, words.len());
    for word in words {
        bulk(out, word);
    }
}

fn head(out: &mut Vec<u8>, kind: u8, number: i64) {
    match number {
        // Nearly all lengths and counts have one digit or two.
        0..=9 => out.extend_from_slice(&[kind, b'0' + number as u8, b'\r', b'\n']),
        10..=99 => {
            let (ten, one) = (number as u8 / 10, number as u8 % 10);
            out.extend_from_slice(&[kind, b'0' + ten, b'0' + one, b'\r', b'\n']);
        }
        _ => {
            out.push(kind);
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis_protocol::{
        resp2::{decode::decode as decode2, types::OwnedFrame as Frame2},
        resp3::{decode::complete::decode as decode3, types::OwnedFrame as Frame3},
    };

    #[test]
    fn a_decoder_reads_what_was_encoded() {
        let mut out = Vec::new();
        array(&mut out, 3);
        bulk(&mut out, b"to\r\nken");
        integer(&mut out, -5);
        error(&mut out, "NOQUORUM a\r\nb");
        let (frame, used) = decode2(&out).unwrap().unwrap();
        assert_eq!(used, out.len());
        assert_eq!(
            frame,
            Frame2::Array(vec![
                Frame2::BulkString(b"to\r\nken".to_vec()),
                Frame2::Integer(-5),
                Frame2::Error("NOQUORUM a  b".into()),
            ])
        );
    }

    #[test]
    fn null_array_is_null_in_both_protocols() {
        let (mut two, mut three) = (Vec::new(), Vec::new());
        null_array(&mut two, false);
        null_array(&mut three, true);
        assert_eq!(decode2(&two).unwrap().unwrap().0, Frame2::Null);
        assert_eq!(decode3(&three).unwrap().unwrap().0, Frame3::Null);
    }
}
