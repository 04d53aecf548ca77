//! Paths of fields in requests, and the errors about their values.

use std::fmt::{self, Display};

use model::{ErrorClass, ErrorKind};

/// An invalid or unsupported value, with the path of its field.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidField {
    #[error("{field}: {problem}")]
    Invalid { field: String, problem: String },
    #[error("{field}: {problem}")]
    Unsupported { field: String, problem: String },
}

impl ErrorClass for InvalidField {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
        }
    }
}

/// The path of a field, such as `config.linux.resources`; formatted only for an error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FieldPath<'a> {
    above: Option<&'a FieldPath<'a>>,
    name: &'a str,
    index: Option<usize>,
}

impl<'a> FieldPath<'a> {
    /// Returns the path of a field of the request itself.
    pub(crate) const fn top(name: &'a str) -> Self {
        Self { above: None, name, index: None }
    }

    /// Returns the path of the field `name` of this message.
    pub(crate) const fn at<'b>(&'b self, name: &'b str) -> FieldPath<'b> {
        FieldPath { above: Some(self), name, index: None }
    }

    /// Returns the path of the entry `index` of this list.
    pub(crate) const fn entry(self, index: usize) -> FieldPath<'a> {
        FieldPath { index: Some(index), ..self }
    }

    pub(crate) fn invalid(&self, problem: impl Display) -> InvalidField {
        InvalidField::Invalid { field: self.to_string(), problem: problem.to_string() }
    }

    pub(crate) fn unsupported(&self, problem: impl Display) -> InvalidField {
        InvalidField::Unsupported { field: self.to_string(), problem: problem.to_string() }
    }

    /// Returns the message in `value`; refuses a request without it.
    pub(crate) fn required<T>(&self, value: Option<T>) -> Result<T, InvalidField> {
        value.ok_or_else(|| self.invalid("missing"))
    }

    /// Refuses an empty text.
    pub(crate) fn filled(&self, text: String) -> Result<String, InvalidField> {
        if text.is_empty() { Err(self.invalid("empty")) } else { self.text(text) }
    }

    /// Refuses a text with a zero byte, which system calls cannot take.
    pub(crate) fn text(&self, text: String) -> Result<String, InvalidField> {
        if text.contains('\0') { Err(self.invalid("contains a zero byte")) } else { Ok(text) }
    }

    /// Refuses a relative path.
    pub(crate) fn absolute(&self, path: String) -> Result<String, InvalidField> {
        if path.is_empty() {
            Err(self.invalid("empty"))
        } else if !path.starts_with('/') {
            Err(self.invalid(format_args!("{path:?} is not an absolute path")))
        } else {
            self.text(path)
        }
    }

    /// Refuses an unknown enum value.
    pub(crate) fn known<T: TryFrom<i32>>(&self, value: i32) -> Result<T, InvalidField> {
        T::try_from(value).map_err(|_| self.invalid(format_args!("{value} is not a known value")))
    }

    /// Returns a user or group ID. System calls take the largest number as "none", so it is
    /// refused.
    pub(crate) fn id(&self, value: i64) -> Result<u32, InvalidField> {
        match u32::try_from(value) {
            Ok(id) if id != u32::MAX => Ok(id),
            Ok(_) | Err(_) => Err(self.invalid(format_args!("{value} is not between 0 and {}", u32::MAX - 1))),
        }
    }

    /// Refuses a section for Windows.
    pub(crate) fn absent<T>(&self, windows: Option<T>) -> Result<(), InvalidField> {
        match windows {
            Some(_) => Err(self.invalid("Windows settings are not supported on a Linux node")),
            None => Ok(()),
        }
    }
}

impl Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(above) = self.above {
            write!(f, "{above}.")?;
        }
        f.write_str(self.name)?;
        match self.index {
            Some(index) => write!(f, "[{index}]"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_whole_path() {
        let config = FieldPath::top("config");
        let mounts = config.at("mounts").entry(2);
        let refusal = mounts.at("container_path").absolute("etc".to_owned()).unwrap_err();
        assert_eq!(refusal.to_string(), "config.mounts[2].container_path: \"etc\" is not an absolute path");
        assert_eq!(refusal.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn ids_are_limited_to_those_of_the_kernel() {
        let field = FieldPath::top("run_as_user");
        assert_eq!(field.id(0), Ok(0));
        assert_eq!(field.id(4_294_967_294), Ok(4_294_967_294));
        for bad in [-1, 4_294_967_295, i64::MAX] {
            assert!(field.id(bad).is_err(), "{bad}");
        }
    }
}
