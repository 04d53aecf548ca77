use proptest::prelude::*;

use super::*;

fn of(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

fn refused(text: &str) -> InvalidQuantity {
    text.parse::<Quantity>().unwrap_err()
}

#[test]
fn every_suffix_has_its_value() {
    let nano = 1;
    let one: u128 = 1_000_000_000;
    let cases: [(&str, u128); 16] = [
        ("n", nano),
        ("u", 1000 * nano),
        ("m", 1_000_000 * nano),
        ("", one),
        ("k", 1000 * one),
        ("M", 1_000_000 * one),
        ("G", 1_000_000_000 * one),
        ("T", 1_000_000_000_000 * one),
        ("P", 1_000_000_000_000_000 * one),
        ("E", 1_000_000_000_000_000_000 * one),
        ("Ki", 1024 * one),
        ("Mi", 1_048_576 * one),
        ("Gi", 1_073_741_824 * one),
        ("Ti", 1_099_511_627_776 * one),
        ("Pi", 1_125_899_906_842_624 * one),
        ("Ei", 1_152_921_504_606_846_976 * one),
    ];
    for (suffix, value) in cases {
        assert_eq!(of(&format!("1{suffix}")).nanos(), value, "{suffix}");
        assert_eq!(of(&format!("7{suffix}")).nanos(), 7 * value, "{suffix}");
    }
}

#[test]
fn quantities_are_compared_by_value() {
    for (one, other) in [
        ("1000m", "1"),
        ("1Gi", "1073741824"),
        ("1.5Gi", "1536Mi"),
        ("+1", "1"),
        ("1.", "1"),
        (".5", "500m"),
        ("0.5", "5e-1"),
        ("2e3", "2k"),
        ("2E3", "2000"),
        ("2e+3", "2k"),
        ("2E-3", "2m"),
        ("1e0", "1"),
        ("1e00003", "1k"),
        ("007", "7"),
        ("1.10", "1100m"),
        ("0.1Ki", "102400m"),
        ("1E", "1e18"),
        ("1.0000000000000000000000", "1"),
        ("0.000000001Gi", "1.073741824"),
        ("0", "-0"),
        ("0.0Ei", "0e999999999999999999999999"),
    ] {
        assert_eq!(of(one), of(other), "{one} {other}");
        assert_eq!(of(one).cmp(&of(other)), Ordering::Equal, "{one} {other}");
    }
    assert_ne!(of("1G"), of("1Gi"));
    assert_ne!(of("1"), of("1.000000001"));
}

#[test]
fn the_original_text_is_kept() {
    for text in ["1000m", "+1.50Gi", "2e+03", ".5", "5.", "-0"] {
        assert_eq!((of(text).as_str(), of(text).to_string().as_str()), (text, text));
    }
}

#[test]
fn malformed_quantities_are_refused() {
    for text in [
        "", " ", "1 ", " 1", "1 Gi", "1\n", "1.2.3", "..", ".", "+", "-", "+-1", "--1", "0x10", "NaN", "inf",
        "Infinity", "m", "Gi", "+Gi", "1K", "1ki", "1KI", "1gi", "1mi", "1Mii", "1GiB", "1i", "1e", "1e+", "1e-",
        "1e1.5", "1e 3", "1ee3", "1Ee3", "1e3Ki", "1mm", "1,5", "1_000", "１", "1µ", "1k3", "abc",
    ] {
        assert_eq!(refused(text), InvalidQuantity::Malformed(text.to_owned()), "{text:?}");
    }
    assert_eq!(
        refused("1 Gi").to_string(),
        "invalid Kubernetes quantity \"1 Gi\": expected a form like 500m, 1.5Gi or 2e3"
    );
}

#[test]
fn negative_quantities_are_refused() {
    for text in ["-1", "-1m", "-0.5Gi", "-1e-9"] {
        assert_eq!(refused(text), InvalidQuantity::Negative(text.to_owned()));
    }
    assert!(of("-0").is_zero());
}

#[test]
fn values_are_never_rounded_capped_or_wrapped() {
    assert_eq!(of("9223372036854775807").nanos(), NANOS_MAX);
    assert_eq!(of("9223372036854775.807k").nanos(), NANOS_MAX);
    assert_eq!(of("7.5Ei").nanos(), 8_646_911_284_551_352_320_000_000_000);
    for text in [
        "9223372036854775808",
        "9223372036854775807.000000001",
        "8Ei",
        "10E",
        "1e19",
        "1e1000",
        "1e99999999999999999999999",
        "99999999999999999999999999999999999999E",
    ] {
        assert_eq!(refused(text), InvalidQuantity::TooLarge(text.to_owned()), "{text}");
    }
    for text in ["0.1n", "1e-10", "1.0000000001", "1e-1000", "1e-99999999999999999999999", "0.0001u", "0.0000000001Gi"]
    {
        assert_eq!(refused(text), InvalidQuantity::TooFine(text.to_owned()), "{text}");
    }
}

#[test]
fn a_value_that_fits_is_computed_without_overflow() {
    // 2^-50 in full: the product of its digits and the suffix exceeds 128 bits.
    assert_eq!(of("0.00000000000000088817841970012523233890533447265625Pi").nanos(), 1_000_000_000);
    assert_eq!(of("0.00000000000000000000000000000000000000000000001e47").nanos(), 1_000_000_000);
    assert_eq!(of("1000000000000000000000000000000000000000e-39").nanos(), 1_000_000_000);
}

#[test]
fn the_length_and_the_number_of_digits_are_limited() {
    let padded = format!("{}1", "0".repeat(63));
    assert_eq!(of(&padded), of("1"));
    assert_eq!(refused(&format!("0{padded}")), InvalidQuantity::TooLong(65));
    let digits = "1".repeat(39);
    assert_eq!(refused(&digits), InvalidQuantity::TooManyDigits(digits.clone()));
    let halves = format!("0.{digits}Ei");
    assert_eq!(refused(&halves), InvalidQuantity::TooManyDigits(halves.clone()));
}

#[test]
fn a_stored_quantity_is_checked_again() {
    let stored = serde_json::to_string(&of("1.50Gi")).unwrap();
    assert_eq!(stored, "\"1.50Gi\"");
    assert_eq!(serde_json::from_str::<Quantity>(&stored).unwrap().as_str(), "1.50Gi");
    assert!(serde_json::from_str::<Quantity>("\"1.5.0Gi\"").is_err());
}

/// The parts of a quantity. `suffix` has a numerator and a denominator.
#[derive(Debug, Clone)]
struct Parts {
    plus: bool,
    whole: u32,
    fraction: String,
    suffix: (&'static str, u128, u128),
}

impl Parts {
    fn text(&self) -> String {
        let Self { plus, whole, fraction, suffix: (suffix, _, _) } = self;
        let sign = if *plus { "+" } else { "" };
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{sign}{whole}{point}{fraction}{suffix}")
    }

    /// Returns the value as numerator and denominator.
    fn ratio(&self) -> (u128, u128) {
        let (_, times, over) = self.suffix;
        let below = self.fraction.bytes().fold(1, |below, _| below * 10);
        let above = self.fraction.bytes().fold(u128::from(self.whole), |above, b| above * 10 + u128::from(b - b'0'));
        (above * times, below * over)
    }
}

fn parts() -> impl Strategy<Value = Parts> {
    let suffixes = vec![
        ("n", 1, 1_000_000_000),
        ("u", 1, 1_000_000),
        ("m", 1, 1000),
        ("", 1, 1),
        ("k", 1000, 1),
        ("M", 1_000_000, 1),
        ("G", 1_000_000_000, 1),
        ("T", 1_000_000_000_000, 1),
        ("P", 1_000_000_000_000_000, 1),
        ("E", 1_000_000_000_000_000_000, 1),
        ("Ki", 1 << 10, 1),
        ("Mi", 1 << 20, 1),
        ("Gi", 1 << 30, 1),
        ("Ti", 1 << 40, 1),
        ("Pi", 1 << 50, 1),
        ("Ei", 1 << 60, 1),
        ("e-9", 1, 1_000_000_000),
        ("E-2", 1, 100),
        ("e0", 1, 1),
        ("e+7", 10_000_000, 1),
        ("E12", 1_000_000_000_000, 1),
    ];
    let number = (any::<bool>(), prop_oneof![0..20_u32, 0..20_000_u32], "[0-9]{0,4}");
    (number, proptest::sample::select(suffixes)).prop_map(|((plus, whole, fraction), suffix)| Parts {
        plus,
        whole,
        fraction,
        suffix,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_displayed_quantity_parses_to_the_same_value(parts in parts()) {
        if let Ok(quantity) = parts.text().parse::<Quantity>() {
            prop_assert_eq!(quantity.to_string(), parts.text());
            prop_assert_eq!(quantity.to_string().parse::<Quantity>(), Ok(quantity));
        }
    }

    #[test]
    fn a_value_is_exact_or_refused(parts in parts()) {
        let (above, below) = parts.ratio();
        let scaled = above * 1_000_000_000;
        match parts.text().parse::<Quantity>() {
            Ok(quantity) => {
                prop_assert_eq!(quantity.nanos() * below, scaled);
                prop_assert!(quantity.nanos() <= NANOS_MAX);
            }
            Err(InvalidQuantity::TooFine(_)) => prop_assert_ne!(scaled % below, 0),
            Err(InvalidQuantity::TooLarge(_)) => prop_assert!(scaled / below > NANOS_MAX),
            Err(other) => prop_assert!(false, "{}: {other}", parts.text()),
        }
    }

    #[test]
    fn the_order_equals_that_of_exact_fractions(one in parts(), other in parts()) {
        if let (Ok(first), Ok(second)) = (one.text().parse::<Quantity>(), other.text().parse::<Quantity>()) {
            let ((a, b), (c, d)) = (one.ratio(), other.ratio());
            prop_assert_eq!(first.cmp(&second), (a * d).cmp(&(c * b)), "{} {}", first, second);
            prop_assert_eq!(first == second, a * d == c * b);
        }
    }

    #[test]
    fn any_text_is_accepted_or_refused_without_panic(text in "[-+0-9.eEinumkKMGTP ]{0,70}") {
        match text.parse::<Quantity>() {
            Ok(quantity) => prop_assert!(quantity.as_str() == text && quantity.nanos() <= NANOS_MAX),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
