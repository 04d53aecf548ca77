//! SELinux contexts: user, role, type and level.

use std::fmt;
use std::str::FromStr;

use model::SeLinux;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    pub(super) user: String,
    pub(super) role: String,
    pub(super) kind: String,
    /// `None` in a policy without levels.
    pub(super) level: Option<String>,
}

/// A text that is not a context.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid SELinux context {0:?}: expected USER:ROLE:TYPE[:LEVEL]")]
pub struct InvalidContext(String);

impl FromStr for Context {
    type Err = InvalidContext;

    fn from_str(text: &str) -> Result<Self, InvalidContext> {
        let mut parts = text.splitn(4, ':').map(str::to_owned);
        let mut next = || parts.next().filter(|part| !part.is_empty()).ok_or_else(|| InvalidContext(text.to_owned()));
        let (user, role, kind) = (next()?, next()?, next()?);
        Ok(Self { user, role, kind, level: parts.next().filter(|level| !level.is_empty()) })
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, role, kind, level } = self;
        write!(f, "{user}:{role}:{kind}")?;
        level.as_ref().map_or(Ok(()), |level| write!(f, ":{level}"))
    }
}

impl Context {
    /// Returns the context of a process with the requested options.
    pub(super) fn of_process(mut self, asked: &SeLinux) -> Self {
        for (own, asked) in
            [(&mut self.user, &asked.user), (&mut self.role, &asked.role), (&mut self.kind, &asked.kind)]
        {
            if !asked.is_empty() {
                own.clone_from(asked);
            }
        }
        self.at_level(asked)
    }

    /// Returns the context of files with the requested user and level. Role and type of files do not
    /// depend on the process.
    pub(super) fn of_files(mut self, asked: &SeLinux) -> Self {
        if !asked.user.is_empty() {
            self.user.clone_from(&asked.user);
        }
        self.at_level(asked)
    }

    fn at_level(mut self, asked: &SeLinux) -> Self {
        if !asked.level.is_empty() {
            self.level = Some(asked.level.clone());
        }
        self
    }

    /// Returns the lowest sensitivity of the level, such as `s0`.
    pub(super) fn sensitivity(&self) -> Option<&str> {
        self.level.as_deref().map(|level| level.split([':', '-']).next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(user: &str, role: &str, kind: &str, level: &str) -> SeLinux {
        SeLinux { user: user.into(), role: role.into(), kind: kind.into(), level: level.into() }
    }

    #[test]
    fn a_displayed_context_parses_to_the_same_value() {
        for text in ["u:r:t", "u:r:t:s0", "u:r:t:s0:c1,c2", "u:r:t:s0-s0:c0.c1023"] {
            assert_eq!(text.parse::<Context>().unwrap().to_string(), text);
        }
        for bad in ["", "u", "u:r", "u:r:", ":r:t", "u::t:s0"] {
            assert_eq!(bad.parse::<Context>(), Err(InvalidContext(bad.to_owned())));
        }
        let sensitivity = |text: &str| text.parse::<Context>().unwrap().sensitivity().map(str::to_owned);
        assert_eq!(sensitivity("u:r:t:s1-s0:c0.c1023"), Some("s1".into()));
        assert_eq!(sensitivity("u:r:t"), None);
    }

    #[test]
    fn options_that_are_not_requested_keep_their_defaults() {
        let own: Context = "u:r:t:s0:c1".parse().unwrap();
        let process = |asked: &SeLinux| own.clone().of_process(asked).to_string();
        let files = |asked: &SeLinux| own.clone().of_files(asked).to_string();
        for (asked, of_process, of_files) in [
            (label("", "", "", ""), "u:r:t:s0:c1", "u:r:t:s0:c1"),
            (label("v", "", "", ""), "v:r:t:s0:c1", "v:r:t:s0:c1"),
            (label("", "q", "", ""), "u:q:t:s0:c1", "u:r:t:s0:c1"),
            (label("", "", "k", ""), "u:r:k:s0:c1", "u:r:t:s0:c1"),
            (label("", "", "", "s0:c2,c3"), "u:r:t:s0:c2,c3", "u:r:t:s0:c2,c3"),
            (label("v", "q", "k", "s1"), "v:q:k:s1", "v:r:t:s1"),
        ] {
            assert_eq!((process(&asked), files(&asked)), (of_process.to_owned(), of_files.to_owned()), "{asked:?}");
        }
    }
}
