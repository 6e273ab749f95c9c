//! Addresses: `inet` and `cidr`, `macaddr` and `macaddr8`.

use std::fmt;
use std::net::IpAddr;

/// An address of a host or of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inet {
    pub address: IpAddr,
    /// As it is written; `inet` leaves it out where it is the whole address.
    pub prefix_length: Option<u8>,
}

/// Six or eight bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MacAddr(pub Vec<u8>);

impl Inet {
    /// Reads `192.168.0.1`, `::1/64`.
    pub fn parse(text: &str) -> Option<Inet> {
        let Some((address, length)) = text.split_once('/') else {
            return Some(Inet { address: text.parse().ok()?, prefix_length: None });
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let plain = length.bytes().all(|byte| byte.is_ascii_digit());
        let prefix_length = length.parse().ok().filter(|length| plain && *length <= most)?;
        Some(Inet { address, prefix_length: Some(prefix_length) })
    }
}

impl MacAddr {
    /// Reads pairs of hexadecimal digits with colons between them.
    pub fn parse(text: &str) -> Option<MacAddr> {
        let pair = |pair: &str| {
            let plain = pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
            if plain { u8::from_str_radix(pair, 16).ok() } else { None }
        };
        let bytes: Vec<u8> = text.split(':').map(pair).collect::<Option<_>>()?;
        matches!(bytes.len(), 6 | 8).then_some(MacAddr(bytes))
    }
}

impl fmt::Display for Inet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix_length {
            None => self.address.fmt(f),
            Some(length) => write!(f, "{}/{length}", self.address),
        }
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (byte, index) in self.0.iter().zip(0..) {
            write!(f, "{}{byte:02x}", if index > 0 { ":" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_they_were_read() {
        for text in ["192.168.0.1", "10.0.0.0/8", "::1/64", "2001:db8::/32", "::ffff:1.2.3.4"] {
            assert_eq!(Inet::parse(text).map(|inet| inet.to_string()).as_deref(), Some(text));
        }
        for text in ["08:00:2b:01:02:03", "08:00:2b:01:02:03:04:05"] {
            assert_eq!(MacAddr::parse(text).map(|address| address.to_string()).as_deref(), Some(text));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "1.2.3", "1.2.3.4/33", "::1/129", "1.2.3.4/", "1.2.3.4/+8", "1.2.3.4/8/8", "x/8"] {
            assert_eq!(Inet::parse(text), None, "{text}");
        }
        for text in ["", "08:00:2b:01:02", "08:00:2b:01:02:03:04", "8:00:2b:01:02:03", "08:00:2b:01:02:+3"] {
            assert_eq!(MacAddr::parse(text), None, "{text}");
        }
    }
}
