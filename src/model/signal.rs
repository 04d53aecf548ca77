//! Parses and prints signals by number and by name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A signal that exists on Linux: 1 to 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i32", into = "i32")]
pub struct Signal(i32);

/// A text or number that does not name a signal.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown signal {0}: expected a name such as SIGTERM, or a number from 1 to 64")]
pub struct UnknownSignal(String);

/// In the order of their numbers, from 1. Real-time signals are handled by number, not listed here.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];
/// glibc reserves 32 and 33, so programs and CRI count real-time signals from 34.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

impl Signal {
    pub const TERM: Signal = Signal(15);
    pub const KILL: Signal = Signal(9);

    #[must_use]
    pub fn number(self) -> i32 {
        self.0
    }

    /// Parses `SIGTERM`, `TERM`, `RTMIN+3`, `SIGRTMAX-2` or a number, in upper or lower case.
    pub fn parse(text: &str) -> Result<Self, UnknownSignal> {
        let unknown = || UnknownSignal(text.to_owned());
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let aliased = match name {
            "CLD" => "CHLD",
            "IOT" => "ABRT",
            "POLL" => "IO",
            other => other,
        };
        if let Ok(number) = aliased.parse::<i32>() {
            return Signal::try_from(number);
        }
        if let Some(index) = NAMES.iter().position(|n| *n == aliased) {
            return i32::try_from(index + 1).map(Signal).map_err(|_| unknown());
        }
        let real_time = if let Some(rest) = aliased.strip_prefix("RTMIN") {
            offset(rest, '+').map(|n| RTMIN.saturating_add(n))
        } else if let Some(rest) = aliased.strip_prefix("RTMAX") {
            offset(rest, '-').map(|n| RTMAX.saturating_sub(n))
        } else {
            None
        };
        real_time.filter(|n| (RTMIN..=RTMAX).contains(n)).map(Signal).ok_or_else(unknown)
    }
}

/// Parses the number after `sign`; an empty text is 0.
fn offset(rest: &str, sign: char) -> Option<i32> {
    if rest.is_empty() { Some(0) } else { rest.strip_prefix(sign)?.parse().ok().filter(|n| *n >= 0) }
}

impl TryFrom<i32> for Signal {
    type Error = UnknownSignal;

    fn try_from(number: i32) -> Result<Self, UnknownSignal> {
        if (1..=RTMAX).contains(&number) { Ok(Signal(number)) } else { Err(UnknownSignal(number.to_string())) }
    }
}

impl From<Signal> for i32 {
    fn from(signal: Signal) -> i32 {
        signal.0
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = usize::try_from(self.0 - 1).ok().and_then(|i| NAMES.get(i));
        match name {
            Some(name) => write!(f, "SIG{name}"),
            None if self.0 < RTMIN => write!(f, "{}", self.0),
            None if self.0 == RTMIN => write!(f, "SIGRTMIN"),
            None if self.0 <= RTMIN + 15 => write!(f, "SIGRTMIN+{}", self.0 - RTMIN),
            None if self.0 == RTMAX => write!(f, "SIGRTMAX"),
            None => write!(f, "SIGRTMAX-{}", RTMAX - self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_parses_from_its_name() {
        for number in 1..=RTMAX {
            let signal = Signal::try_from(number).unwrap();
            assert_eq!(Signal::parse(&signal.to_string()), Ok(signal), "{signal}");
        }
    }

    #[test]
    fn every_spelling_in_images_is_parsed() {
        for (text, number) in [("SIGQUIT", 3), ("quit", 3), ("9", 9), ("SIGRTMIN+3", 37), ("rtmax-1", 63), ("CLD", 17)]
        {
            assert_eq!(Signal::parse(text).unwrap().number(), number, "{text}");
        }
        for bad in ["", "SIG", "0", "65", "-1", "RTMIN+31", "RTMAX-99", "RTMIN3", "NOPE"] {
            assert!(Signal::parse(bad).is_err(), "{bad}");
        }
    }
}
