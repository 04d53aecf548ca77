//! Signals. CRI's numbers differ from the kernel's.

use cri_api::v1;
use model::Signal;

use super::{FieldPath, InvalidField};

/// `None`: the runtime chooses.
pub(super) fn signal(at: FieldPath<'_>, value: i32) -> Result<Option<Signal>, InvalidField> {
    let named: v1::Signal = at.known(value)?;
    if named == v1::Signal::RuntimeDefault {
        return Ok(None);
    }
    let name = named.as_str_name().trim_start_matches("SIGNAL_").replace("PLUS", "+").replace("MINUS", "-");
    Signal::parse(&name).map(Some).map_err(|unknown| at.invalid(unknown))
}

/// Returns the default for a signal that CRI does not have; only an image can request it.
pub(super) fn to_wire(signal: Signal) -> v1::Signal {
    let name = signal.to_string().replace('+', "PLUS").replace('-', "MINUS");
    v1::Signal::from_str_name(&format!("SIGNAL_{name}")).unwrap_or(v1::Signal::RuntimeDefault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_of_cri_is_converted_in_both_directions() {
        let at = FieldPath::top("stop_signal");
        assert_eq!(signal(at, 0), Ok(None));
        for value in 1..=65 {
            let ours = signal(at, value).unwrap().unwrap();
            let theirs = to_wire(ours);
            assert_eq!(signal(at, theirs.into()), Ok(Some(ours)), "{value}");
            // Three have an older second name.
            let name = v1::Signal::try_from(value).unwrap();
            if !matches!(name, v1::Signal::Sigcld | v1::Signal::Sigiot | v1::Signal::Sigpoll) {
                assert_eq!(theirs, name);
            }
        }
        assert_eq!(signal(at, v1::Signal::Sigterm.into()), Ok(Some(Signal::TERM)));
        assert!(signal(at, 66).is_err());
    }
}
