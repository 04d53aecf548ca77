//! Resolves the user and groups of a container's process.

use crate::rootfs::passwd::{Accounts, Passwd, id};

/// The user as requested by the container and by its image.
#[derive(Debug, Clone, Copy, Default)]
pub struct UserRequest<'a> {
    /// Numeric user of the container; has precedence over all others.
    pub run_as_user: Option<i64>,
    /// User name of the container; empty is none.
    pub run_as_username: &'a str,
    /// Numeric group of the container; needs one of the two above.
    pub run_as_group: Option<i64>,
    /// `user[:group]` of the image; empty is root.
    pub image_user: &'a str,
}

/// The user and groups of a container's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Additional groups of the user in the image's `/etc/group`, sorted, without the primary one.
    pub groups: Vec<u32>,
    /// Home directory; `/` if the image does not define it.
    pub home: String,
}

/// A user or group that could not be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// A number below 0 or above 2147483647.
    #[error("{what} {value} must be between 0 and 2147483647")]
    Range {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// A user name is not in the image's `/etc/passwd`.
    #[error("user {0:?} is not in the image's /etc/passwd")]
    NoSuchUser(String),
    /// A group name is not in the image's `/etc/group`.
    #[error("group {0:?} is not in the image's /etc/group")]
    NoSuchGroup(String),
    /// A group was requested without a user.
    #[error("run_as_group is set without run_as_user or run_as_username")]
    GroupAlone,
    /// An empty name next to a colon, or several colons.
    #[error("invalid user {0:?} in the image config: expected user[:group]")]
    Malformed(String),
}

impl model::ErrorClass for UserError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Range { .. } | Self::NoSuchUser(_) | Self::NoSuchGroup(_) | Self::GroupAlone | Self::Malformed(_) => {
                model::ErrorKind::Invalid
            }
        }
    }
}

/// Resolves the user of a container: the container's request, otherwise the image's user, otherwise
/// root.
///
/// The image's group is used only together with the image's user.
pub fn resolve_user(accounts: &Accounts, ask: UserRequest<'_>) -> Result<User, UserError> {
    let explicit = ask.run_as_user.is_some() || !ask.run_as_username.is_empty();
    if ask.run_as_group.is_some() && !explicit {
        return Err(UserError::GroupAlone);
    }
    // The image's user is not even parsed if the container requests one.
    let (user, group) = if explicit { ("", None) } else { split(ask.image_user)? };
    let (uid, entry) = match ask.run_as_user {
        Some(uid) => {
            let uid = in_range("run_as_user", uid)?;
            (uid, accounts.by_uid(uid))
        }
        None if explicit => named(accounts, ask.run_as_username)?,
        None if user.is_empty() => (0, accounts.by_uid(0)),
        None => numeric_or_named(accounts, user)?,
    };
    let gid = match (ask.run_as_group, group) {
        (Some(gid), _) => in_range("run_as_group", gid)?,
        (None, Some(group)) => group_id(accounts, group)?,
        (None, None) => entry.map_or(0, |entry| entry.gid),
    };
    let mut groups: Vec<u32> = entry.map(|entry| accounts.groups_of(&entry.name).collect()).unwrap_or_default();
    groups.sort_unstable();
    groups.dedup();
    groups.retain(|&group| group != gid);
    let home = entry.map(|entry| entry.home.as_str()).filter(|home| home.starts_with('/')).unwrap_or("/");
    Ok(User { uid, gid, groups, home: home.to_owned() })
}

fn split(image_user: &str) -> Result<(&str, Option<&str>), UserError> {
    match image_user.split_once(':') {
        None => Ok((image_user, None)),
        Some((user, group)) if !user.is_empty() && !group.is_empty() && !group.contains(':') => Ok((user, Some(group))),
        Some(_) => Err(UserError::Malformed(image_user.to_owned())),
    }
}

fn in_range(what: &'static str, value: i64) -> Result<u32, UserError> {
    let small = i32::try_from(value).ok().and_then(|value| u32::try_from(value).ok());
    small.ok_or_else(|| UserError::Range { what, value: value.to_string() })
}

/// Parses a number; `None` if the text is a name. A number out of range is never treated as a name.
fn number(what: &'static str, text: &str) -> Result<Option<u32>, UserError> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(None);
    }
    id(text).map(Some).ok_or_else(|| UserError::Range { what, value: text.to_owned() })
}

fn numeric_or_named<'a>(accounts: &'a Accounts, text: &str) -> Result<(u32, Option<&'a Passwd>), UserError> {
    match number("the image's user", text)? {
        Some(uid) => Ok((uid, accounts.by_uid(uid))),
        None => named(accounts, text),
    }
}

fn named<'a>(accounts: &'a Accounts, name: &str) -> Result<(u32, Option<&'a Passwd>), UserError> {
    match accounts.by_name(name) {
        Some(entry) => Ok((entry.uid, Some(entry))),
        None => Err(UserError::NoSuchUser(name.to_owned())),
    }
}

fn group_id(accounts: &Accounts, text: &str) -> Result<u32, UserError> {
    match number("the image's group", text)? {
        Some(gid) => Ok(gid),
        None => match accounts.group(text) {
            Some(group) => Ok(group.gid),
            None => Err(UserError::NoSuchGroup(text.to_owned())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts::parse(
            b"root:x:0:0::/root:/bin/sh\nweb:x:1000:1000::/srv/web:\n4294967296:x:0:0::/:\nrel:x:7:7::home:\n",
            b"root:x:0:\nwheel:x:10:root,web\nweb:x:1000:web\naudio:x:29:web\n",
        )
    }

    fn image(user: &str) -> Result<User, UserError> {
        resolve_user(&accounts(), UserRequest { image_user: user, ..UserRequest::default() })
    }

    #[test]
    fn an_image_without_user_runs_as_root_with_its_groups() {
        let root = User { uid: 0, gid: 0, groups: vec![10], home: "/root".into() };
        assert_eq!(image("").unwrap(), root);
        assert_eq!(image("root").unwrap(), root);
        assert_eq!(resolve_user(&Accounts::default(), UserRequest::default()).unwrap().home, "/");
    }

    #[test]
    fn names_and_numbers_resolve_to_the_same_user() {
        let web = User { uid: 1000, gid: 1000, groups: vec![10, 29], home: "/srv/web".into() };
        assert_eq!(image("web").unwrap(), web);
        assert_eq!(image("1000").unwrap(), web);
        assert_eq!(image("web:audio").unwrap(), User { gid: 29, groups: vec![10, 1000], ..web.clone() });
        assert_eq!(image("1000:5").unwrap(), User { gid: 5, groups: vec![10, 29, 1000], ..web });
        assert_eq!(image("4000").unwrap(), User { uid: 4000, gid: 0, groups: vec![], home: "/".into() });
        assert_eq!(image("rel").unwrap().home, "/");
    }

    #[test]
    fn numbers_out_of_range_are_refused_and_not_treated_as_names() {
        for bad in
            ["4294967296", "4294967295", "2147483648", "-1", "4294967296:0", "0:4294967296", "99999999999999999999"]
        {
            assert!(matches!(image(bad), Err(UserError::Range { .. })), "{bad}");
        }
        assert_eq!(image("2147483647").unwrap().uid, 2_147_483_647);
        for bad in [-1, 1 << 32, i64::MAX, i64::MIN] {
            let user = UserRequest { run_as_user: Some(bad), ..UserRequest::default() };
            assert!(matches!(resolve_user(&accounts(), user), Err(UserError::Range { .. })));
        }
    }

    #[test]
    fn unknown_names_and_malformed_users_are_errors() {
        assert_eq!(image("nobody"), Err(UserError::NoSuchUser("nobody".into())));
        assert_eq!(image("web:none"), Err(UserError::NoSuchGroup("none".into())));
        for bad in [":", "web:", ":web", "a:b:c"] {
            assert_eq!(image(bad), Err(UserError::Malformed(bad.into())));
        }
    }

    #[test]
    fn the_request_of_the_container_overrides_the_image() {
        let ask = UserRequest { run_as_user: Some(1000), image_user: "0:29", ..UserRequest::default() };
        assert_eq!(resolve_user(&accounts(), ask).unwrap().gid, 1000);
        let ask = UserRequest { run_as_user: Some(1000), image_user: "a:b:c", ..UserRequest::default() };
        assert_eq!(resolve_user(&accounts(), ask).unwrap().uid, 1000);
        let ask = UserRequest { run_as_username: "web", run_as_group: Some(3), ..UserRequest::default() };
        let user = resolve_user(&accounts(), ask).unwrap();
        assert_eq!((user.uid, user.gid), (1000, 3));
        let ask = UserRequest { run_as_group: Some(3), image_user: "web", ..UserRequest::default() };
        assert_eq!(resolve_user(&accounts(), ask), Err(UserError::GroupAlone));
    }
}
