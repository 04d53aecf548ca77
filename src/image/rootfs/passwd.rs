//! The users and groups of an image, from its `/etc/passwd` and `/etc/group`.

/// Size limit of each file; a larger one is an attack or a mistake.
pub(crate) const FILE_MAX: u64 = 1 << 20;
const LINE_MAX: usize = 64 * 1024;

/// A line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passwd {
    /// User name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Home directory.
    pub home: String,
}

/// A line of `/etc/group`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Group name.
    pub name: String,
    /// Group id.
    pub gid: u32,
    /// Names of users that have it as an additional group.
    pub members: Vec<String>,
}

/// The content of an image's account files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accounts {
    users: Vec<Passwd>,
    groups: Vec<Group>,
}

impl Accounts {
    /// Parses both files; invalid lines are skipped, as the C library does.
    pub fn parse(passwd: &[u8], group: &[u8]) -> Self {
        Self { users: lines(passwd).filter_map(user).collect(), groups: lines(group).filter_map(a_group).collect() }
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<&Passwd> {
        self.users.iter().find(|user| user.name == name)
    }

    pub(crate) fn by_uid(&self, uid: u32) -> Option<&Passwd> {
        self.users.iter().find(|user| user.uid == uid)
    }

    pub(crate) fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// Returns the groups that list `user` as a member.
    pub(crate) fn groups_of(&self, user: &str) -> impl Iterator<Item = u32> {
        self.groups.iter().filter(move |group| group.members.iter().any(|name| name == user)).map(|group| group.gid)
    }
}

/// Returns the lines that are valid text; control characters could inject lines into a file
/// generated from them.
fn lines(content: &[u8]) -> impl Iterator<Item = &str> {
    content
        .split(|&b| b == b'\n')
        .filter(|line| line.len() <= LINE_MAX)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .filter(|line| !line.is_empty() && !line.starts_with('#') && !line.contains(char::is_control))
}

fn user(line: &str) -> Option<Passwd> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
    let (_password, uid, gid) = (fields.next()?, id(fields.next()?)?, id(fields.next()?)?);
    let home = fields.nth(1).unwrap_or_default().to_owned();
    Some(Passwd { name, uid, gid, home })
}

fn a_group(line: &str) -> Option<Group> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
    let (_password, gid) = (fields.next()?, id(fields.next()?)?);
    let members = fields.next().unwrap_or_default();
    let members = members.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    Some(Group { name, gid, members })
}

/// Parses an id that a process can have and all kernel interfaces can represent.
pub(crate) fn id(text: &str) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse::<i32>().ok().and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_lines_are_skipped() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\n\n# no\nbad\n:x:1:1::/:\nminus:x:-1:0::/:\n\
            big:x:4294967296:0::/:\nmax:x:4294967295:0::/:\ntab:x:7:7::/ho\tme:\nlast:x:5:6";
        let accounts = Accounts::parse(passwd, b"g:x:5:a,b,,c\nshort:x:6\n\xff:x:1:\n");
        let names: Vec<_> = accounts.users.iter().map(|user| user.name.as_str()).collect();
        assert_eq!(names, ["root", "last"]);
        assert_eq!(accounts.by_uid(5).unwrap().home, "");
        assert_eq!(accounts.groups[0].members, ["a", "b", "c"]);
        assert_eq!(accounts.groups[1], Group { name: "short".into(), gid: 6, members: vec![] });
        assert_eq!(accounts.groups.len(), 2);
    }
}
