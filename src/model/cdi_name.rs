//! Checks names of CDI devices by the rules of the CDI specification.

/// An invalid name of a CDI device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid CDI device name {0:?}: expected a form like vendor.com/class=device")]
pub struct InvalidDeviceName(String);

/// Checks a fully qualified name: vendor, class and device.
pub fn check_name(name: &str) -> Result<(), InvalidDeviceName> {
    let good = name.split_once('=').is_some_and(|(kind, device)| is_kind(kind) && is_device(device));
    if good { Ok(()) } else { Err(InvalidDeviceName(name.to_owned())) }
}

/// Returns whether `text` is a kind: `vendor.com/class`.
pub fn is_kind(text: &str) -> bool {
    text.split_once('/').is_some_and(|(vendor, class)| is_part(vendor) && is_part(class))
}

/// Returns whether `text` can be the name of a device in a spec.
pub fn is_device(text: &str) -> bool {
    is_word(text, |b| b.is_ascii_alphanumeric(), b"_-.:")
}

fn is_part(text: &str) -> bool {
    is_word(text, |b| b.is_ascii_alphabetic(), b"_-.")
}

/// Returns whether `text` has letters and digits and, not at its ends, bytes of `inner`; `first`
/// checks the first byte.
fn is_word(text: &str, first: impl Fn(u8) -> bool, inner: &[u8]) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|b| first(*b))
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || inner.contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_cdi_specification() {
        for good in ["vendor.com/class=dev", "v/c=0", "V-1.x/c_l.a-ss=0:1.0-a_b", "nvidia.com/gpu=GPU-1a:2b"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "=",
            "/",
            "gpu",
            "/dev/null",
            "vendor.com/class",
            "vendor.com/class=",
            "vendor.com=dev",
            "/class=dev",
            "vendor.com/=dev",
            "1vendor/class=dev",
            "vendor/1class=dev",
            "vendor./class=dev",
            "vendor/class=-dev",
            "vendor/class=dev-",
            "vendor/class=a/b",
            "vendor/class=a=b",
            "vendor/class/x=dev",
            "vendor/class=../dev",
            "vendor/class=dev\n",
            "vendor/class=d ev",
            "vendor/class=d\0v",
            "vendör/class=dev",
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
