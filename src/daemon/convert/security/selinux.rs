//! The parts of an SELinux context, checked by their syntax. Whether the policy has them is checked
//! later.

use cri_api::v1;
use model::SeLinux;

use crate::convert::{FieldPath, InvalidField};

/// No policy has longer names.
const NAME_MAX: usize = 255;

/// Returns the options; empty options count as absent.
pub(crate) fn options(at: FieldPath<'_>, asked: Option<v1::SeLinuxOption>) -> Result<Option<SeLinux>, InvalidField> {
    let Some(asked) = asked.filter(|options| *options != v1::SeLinuxOption::default()) else { return Ok(None) };
    let v1::SeLinuxOption { user, role, r#type, level } = asked;
    for (name, text) in [("user", &user), ("role", &role), ("type", &r#type)] {
        if !text.is_empty() && !is_name(text) {
            return Err(at.at(name).invalid(format_args!("{text:?} is not a valid SELinux name")));
        }
    }
    if !level.is_empty() && !is_range(&level) {
        let problem = format_args!("{level:?} is not an SELinux level such as \"s0:c1,c2\" or \"s0-s0:c0.c15\"");
        return Err(at.at("level").invalid(problem));
    }
    Ok(Some(SeLinux { user, role, kind: r#type, level }))
}

fn is_name(text: &str) -> bool {
    let rest = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    text.len() <= NAME_MAX && text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.bytes().all(rest)
}

/// Returns true for one level, or a range of two.
fn is_range(text: &str) -> bool {
    let (low, high) = text.split_once('-').unwrap_or((text, "s0"));
    text.len() <= NAME_MAX && is_level(low) && is_level(high)
}

fn is_level(text: &str) -> bool {
    match text.split_once(':') {
        None => number(text, 's').is_some(),
        Some((sensitivity, categories)) => {
            number(sensitivity, 's').is_some() && categories.split(',').all(are_categories)
        }
    }
}

/// Returns true for one category, or a range of two.
fn are_categories(text: &str) -> bool {
    match text.split_once('.') {
        None => number(text, 'c').is_some(),
        Some((first, last)) => number(first, 'c').zip(number(last, 'c')).is_some_and(|(first, last)| first < last),
    }
}

fn number(text: &str, letter: char) -> Option<u16> {
    let digits = text.strip_prefix(letter)?;
    let plain = (1..=4).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut v1::SeLinuxOption)) -> Result<Option<SeLinux>, String> {
        let mut asked = v1::SeLinuxOption::default();
        change(&mut asked);
        options(FieldPath::top("selinux_options"), Some(asked)).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn levels_are_those_of_the_kernel() {
        for good in
            ["s0", "s15", "s0:c0", "s0:c1,c2", "s0:c0.c1023", "s0:c1,c5.c9,c1023", "s0-s0:c0.c1023", "s0:c1-s3:c1,c2"]
        {
            assert_eq!(with(|o| o.level = good.into()).unwrap().unwrap().level, good);
        }
        for bad in [
            "s",
            "c0",
            "0",
            "S0",
            "s0:",
            "s0:c",
            "s0:c1,",
            "s0:,c1",
            "s0:c1 ",
            " s0",
            "s0:c5.c5",
            "s0:c9.c1",
            "s0-",
            "-s0",
            "s0-s1-s2",
            "s0:c1.c2.c3",
            "s0:c12345",
            "s0:c+1",
            "s0:c1:c2",
            "s0\n",
            "SystemLow",
            "s0:c1,c2\0",
            "s٣",
        ] {
            let refused = with(|o| o.level = bad.into()).unwrap_err();
            assert!(refused.contains("selinux_options.level"), "{bad}: {refused}");
        }
        with(|o| o.level = format!("s0:{}c1", "c1,".repeat(100))).unwrap_err();
    }

    #[test]
    fn names_cannot_contain_the_separator_of_parts() {
        for good in ["container_t", "system_u", "a.b-c_d9"] {
            assert_eq!(with(|o| o.r#type = good.into()).unwrap().unwrap().kind, good);
        }
        for bad in ["a:b", "9a", "_a", "a b", "a\n", "a,b", "\"a\"", "ä", &"a".repeat(256)] {
            type Part = (&'static str, fn(&mut v1::SeLinuxOption) -> &mut String);
            let parts: [Part; 3] = [("user", |o| &mut o.user), ("role", |o| &mut o.role), ("type", |o| &mut o.r#type)];
            for (name, part) in parts {
                let refused = with(|o| *part(o) = bad.to_owned()).unwrap_err();
                assert!(refused.contains(&format!("selinux_options.{name}")), "{bad}: {refused}");
            }
        }
    }

    #[test]
    fn an_empty_option_counts_as_absent() {
        assert_eq!(with(|_| {}), Ok(None));
        assert_eq!(options(FieldPath::top("selinux_options"), None).map_err(|e| e.to_string()), Ok(None));
    }
}
