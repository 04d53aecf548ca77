//! Parses address ranges such as `10.0.0.0/16`, as the kubelet sends pod CIDRs.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use model::{ErrorClass, ErrorKind};

/// Text that is not an address range.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadCidr {
    #[error("invalid pod CIDR {0:?}: expected ADDRESS/LENGTH")]
    Form(String),
    #[error("invalid pod CIDR {0:?}: it has bits set after the prefix")]
    HostBits(String),
}

impl ErrorClass for BadCidr {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Form(_) | Self::HostBits(_) => ErrorKind::Invalid,
        }
    }
}

/// An address range: its first address and the length of the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    pub first: IpAddr,
    pub length: u8,
}

impl Cidr {
    /// Parses the kubelet's list of ranges, separated by commas.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, BadCidr> {
        text.split(',').map(|one| one.trim().parse()).collect()
    }
}

impl FromStr for Cidr {
    type Err = BadCidr;

    fn from_str(text: &str) -> Result<Self, BadCidr> {
        let form = || BadCidr::Form(text.to_owned());
        let (address, length) = text.split_once('/').ok_or_else(form)?;
        let first: IpAddr = address.parse().map_err(|_| form())?;
        // Only digits: `parse` would accept a sign too.
        let digits = length.bytes().all(|b| b.is_ascii_digit());
        let length: u8 = length.parse().ok().filter(|_| digits).ok_or_else(form)?;
        let (bits, all) = match first {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
            IpAddr::V6(v6) => (v6.to_bits(), 128),
        };
        if length > all {
            return Err(form());
        }
        if bits.checked_shl(length.into()).unwrap_or(0) != 0 {
            return Err(BadCidr::HostBits(text.to_owned()));
        }
        Ok(Self { first, length })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_written_back() {
        for good in ["10.0.0.0/24", "0.0.0.0/0", "10.1.2.3/32", "::/0", "2001:4860:4860::/64", "::1/128"] {
            assert_eq!(good.parse::<Cidr>().unwrap().to_string(), good);
        }
        let both = Cidr::parse_all("10.0.0.0/24, 2001:4860:4860::/64").unwrap();
        assert_eq!(both.iter().map(Cidr::to_string).collect::<Vec<_>>(), ["10.0.0.0/24", "2001:4860:4860::/64"]);
    }

    #[test]
    fn an_invalid_range_is_rejected() {
        for bad in
            ["", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "::/129", "10.0.0/24", "a/24", "10.0.0.0/+8", "10.0.0.0/-1"]
        {
            assert_eq!(bad.parse::<Cidr>(), Err(BadCidr::Form(bad.to_owned())), "{bad}");
        }
        for bad in ["10.0.0.1/24", "10.0.0.0/6", "2001:db8::1/64", "10.0.0.1/0"] {
            assert_eq!(bad.parse::<Cidr>(), Err(BadCidr::HostBits(bad.to_owned())), "{bad}");
        }
        assert!(Cidr::parse_all("10.0.0.0/24,").is_err());
        assert!(Cidr::parse_all("10.0.0.0/24 fd00::/64").is_err());
    }
}
