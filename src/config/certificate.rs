//! The validity periods of the certificates that the configuration names, and warnings about them.

use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use der::{
    DateTime, Decode, SliceReader, Tag, Tagged,
    asn1::{AnyRef, GeneralizedTime, UtcTime},
};

use super::{AuthClients, ClientTls, Config, ServerTls, tls_files::certificates};

/// How long before its end a certificate is reported, in seconds: two weeks. config/alerts.yml has it too.
const TOLD_BEFORE: i64 = 14 * DAY;
const DAY: i64 = 24 * 60 * 60;

/// The validity period of the certificates of one file, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CertificateTimes {
    /// The key that names the file: `cert_file` or `ca_cert_file`.
    pub key: &'static str,
    /// When the last of a chain begins, or the first of several CAs.
    pub begins: i64,
    /// When the first of a chain ends, or the last of several CAs: an old CA may stay beside its successor.
    pub ends: i64,
}

/// A certificate that is not valid now, or will soon end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateTrouble {
    /// Whether it is not valid now.
    pub is_now: bool,
    /// Which certificate it is and what is wrong, in half a sentence.
    pub what: String,
}

/// How the periods of several certificates in one file combine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Together {
    /// All must be valid.
    Chain,
    /// One valid certificate is enough.
    Authorities,
}

impl CertificateTimes {
    /// Returns what is wrong with the certificates in `place` at `now`, in seconds since 1970.
    pub(crate) fn trouble(&self, place: &str, now: i64) -> Option<CertificateTrouble> {
        let CertificateTimes { key, begins, ends } = *self;
        let (whose, they) = match key {
            "ca_cert_file" => ("the last CA in it", "certificates signed by it may be refused"),
            _ => ("the certificate in it", "whoever checks it refuses to connect"),
        };
        let left = ends - now;
        let (is_now, what) = match () {
            () if now < begins => (true, format!("is not valid before {}: {they}", date(begins))),
            () if left <= 0 => (true, format!("ended on {}: {they}", date(ends))),
            () if left <= TOLD_BEFORE => {
                let days = (left / DAY).max(1);
                let s = if days == 1 { "" } else { "s" };
                (false, format!("ends in {days} day{s}, on {}: renew it", date(ends)))
            }
            () => return None,
        };
        Some(CertificateTrouble { is_now, what: format!("{place} ({key}): {whose} {what}") })
    }
}

/// The time now, in seconds since 1970.
pub(crate) fn now_in_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Formats a time, in UTC.
fn date(seconds: i64) -> String {
    let since = u64::try_from(seconds).map(Duration::from_secs);
    match since.map(DateTime::from_unix_duration) {
        Ok(Ok(time)) => {
            let (year, month, day) = (time.year(), time.month(), time.day());
            format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", time.hour(), time.minutes())
        }
        _ => format!("second {seconds}"),
    }
}

/// Reads when a certificate begins and ends, in seconds since 1970 (RFC 5280, 4.1: Certificate,
/// TBSCertificate, Validity). Looks at nothing else.
fn validity(certificate: &[u8]) -> der::Result<(i64, i64)> {
    let mut whole = SliceReader::new(certificate)?;
    let certificate = AnyRef::decode(&mut whole)?;
    let mut certificate = SliceReader::new(certificate.value())?;
    let signed = AnyRef::decode(&mut certificate)?;
    let mut signed = SliceReader::new(signed.value())?;
    // A version of 1 is left out. The serial number, the algorithm and the issuer follow.
    let mut field = AnyRef::decode(&mut signed)?;
    let to_go = if field.tag().is_context_specific() { 4 } else { 3 };
    for _ in 0..to_go {
        field = AnyRef::decode(&mut signed)?;
    }
    let mut validity = SliceReader::new(field.value())?;
    Ok((time(&mut validity)?, time(&mut validity)?))
}

/// Reads a Time (RFC 5280, 4.1.2.5) as seconds since 1970.
fn time(reader: &mut SliceReader<'_>) -> der::Result<i64> {
    let since = match Tag::peek(reader)? {
        Tag::UtcTime => UtcTime::decode(reader)?.to_unix_duration(),
        _ => GeneralizedTime::decode(reader)?.to_unix_duration(),
    };
    Ok(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Reads the validity period of a file. Returns `None` if it cannot be read.
fn times(key: &'static str, file: &Path, together: Together) -> Option<CertificateTimes> {
    let all = certificates(&std::fs::read(file).ok()?).ok()?;
    let all: Vec<(i64, i64)> = all.iter().filter_map(|one| validity(one).ok()).collect();
    let (begins, ends) = (all.iter().map(|times| times.0), all.iter().map(|times| times.1));
    let (begins, ends) = match together {
        Together::Chain => (begins.max()?, ends.min()?),
        Together::Authorities => (begins.min()?, ends.max()?),
    };
    Some(CertificateTimes { key, begins, ends })
}

impl ServerTls {
    /// Returns the validity periods of the files in use, as far as they can be read.
    pub(crate) fn certificate_times(&self) -> Vec<CertificateTimes> {
        let cas = self.ca_cert_file.as_ref().filter(|_| self.auth_clients != AuthClients::No);
        let cas = cas.and_then(|file| times("ca_cert_file", file, Together::Authorities));
        times("cert_file", &self.cert_file, Together::Chain).into_iter().chain(cas).collect()
    }
}

impl ClientTls {
    /// Returns the validity periods of the files in use, as far as they can be read.
    pub(crate) fn certificate_times(&self) -> Vec<CertificateTimes> {
        let chain = self.cert_file.as_ref();
        let chain = chain.and_then(|file| times("cert_file", file, Together::Chain));
        let cas = self.ca_cert_file.as_ref();
        let cas = cas.and_then(|file| times("ca_cert_file", file, Together::Authorities));
        chain.into_iter().chain(cas).collect()
    }
}

impl Config {
    /// Returns what is wrong now with the certificates in the files that this configuration uses.
    pub fn certificate_troubles(&self) -> Vec<CertificateTrouble> {
        let now = now_in_seconds();
        let mut troubles = Vec::new();
        let mut look = |place: &str, times: Vec<CertificateTimes>| {
            troubles.extend(times.iter().filter_map(|times| times.trouble(place, now)));
        };
        for listener in &self.listen {
            if let Some(tls) = &listener.tls {
                look(&format!("listen {}, tls", listener.address), tls.certificate_times());
            }
        }
        let nodes = self.locks.nodes.iter().chain(&self.locks.next_nodes);
        let nodes_use_it = nodes.into_iter().any(|node| node.uses_tls());
        let is_one = self.locks.tls == self.tls;
        if self.data.uses_tls() || nodes_use_it && is_one {
            look("tls", self.tls.certificate_times());
        }
        if nodes_use_it && !is_one {
            look("locks.tls", self.locks.tls.certificate_times());
        }
        troubles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_told_of_from_two_weeks_before_its_end() {
        let ends = 1_893_542_400;
        let of = |key| CertificateTimes { key, begins: ends - 90 * DAY, ends };
        let told = |left: i64| of("cert_file").trouble("tls", ends - left);
        assert_eq!(told(TOLD_BEFORE + 1), None);
        let soon = told(TOLD_BEFORE).unwrap();
        assert!(!soon.is_now);
        assert_eq!(
            soon.what,
            "tls (cert_file): the certificate in it ends in 14 days, on 2030-01-02 00:00 UTC: renew it"
        );
        assert!(told(60).unwrap().what.contains("ends in 1 day, on"));
        for left in [0, -DAY] {
            let ended = told(left).unwrap();
            assert!(ended.is_now && ended.what.contains("ended on 2030-01-02 00:00 UTC"));
        }
        let early = told(91 * DAY).unwrap();
        assert!(early.is_now && early.what.contains("is not valid before 2029-10-04"), "{early:?}");
        let ca = of("ca_cert_file").trouble("locks.tls", ends).unwrap();
        assert!(ca.what.starts_with("locks.tls (ca_cert_file): the last CA in it ended on"));
    }

    #[test]
    fn times_are_read_in_both_forms_with_and_without_a_version() {
        let tlv = |tag: u8, value: &[u8]| {
            let length = u8::try_from(value.len()).unwrap();
            [&[tag, length], value].concat()
        };
        let validity =
            tlv(0x30, &[tlv(0x17, b"490102030405Z"), tlv(0x18, b"20600102030405Z")].concat());
        let (number, sequence) = (tlv(2, &[1]), tlv(0x30, &[]));
        let plain = [number.clone(), sequence.clone(), sequence, validity].concat();
        let versioned = [tlv(0xa0, &number), plain.clone()].concat();
        for signed in [plain, versioned] {
            let whole = tlv(0x30, &tlv(0x30, &signed));
            assert_eq!(super::validity(&whole).unwrap(), (2_493_169_445, 2_840_238_245));
            for end in 0..whole.len() {
                assert!(super::validity(&whole[..end]).is_err(), "{end}");
            }
        }
    }

    #[test]
    fn the_first_of_a_chain_and_the_last_of_several_cas_count() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("both.crt");
        let made = [2031, 2029].map(|year| {
            let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_before = rcgen::date_time_ymd(year - 5, 1, 2);
            params.not_after = rcgen::date_time_ymd(year, 1, 2);
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
        });
        std::fs::write(&file, made.concat()).unwrap();
        let of = |together| times("cert_file", &file, together).map(|all| (all.begins, all.ends));
        let at = |year| rcgen::date_time_ymd(year, 1, 2).unix_timestamp();
        assert_eq!(of(Together::Chain), Some((at(2026), at(2029))));
        assert_eq!(of(Together::Authorities), Some((at(2024), at(2031))));
        assert_eq!(times("cert_file", &dir.path().join("none"), Together::Chain), None);
    }
}
