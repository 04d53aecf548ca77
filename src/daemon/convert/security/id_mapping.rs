//! ID mappings of user namespaces and mounts.

use cri_api::v1;
use model::{ID_LINES_MAX, ID_TEXT_MAX, IdMapping, id_map_text};

use crate::convert::{FieldPath, InvalidField};

/// Returns the ID mappings of a user namespace, which must map ID 0.
pub(crate) fn namespace(at: FieldPath<'_>, asked: Vec<v1::IdMapping>) -> Result<Vec<IdMapping>, InvalidField> {
    if asked.is_empty() {
        return Err(at.invalid("empty, but mode is POD"));
    }
    let lines = lines(at, asked)?;
    if lines.iter().any(|line| line.container == 0) {
        Ok(lines)
    } else {
        Err(at.invalid("the container's id 0 is not mapped"))
    }
}

/// Returns ID mappings that the kernel accepts: no ID is mapped twice.
pub(crate) fn lines(at: FieldPath<'_>, asked: Vec<v1::IdMapping>) -> Result<Vec<IdMapping>, InvalidField> {
    if asked.len() > ID_LINES_MAX {
        return Err(at.invalid(format_args!("{} entries: the kernel accepts at most {ID_LINES_MAX}", asked.len())));
    }
    let lines = asked
        .into_iter()
        .enumerate()
        .map(|(index, line)| mapping(at.entry(index), line))
        .collect::<Result<Vec<_>, InvalidField>>()?;
    for (name, first) in [("host_id", host as fn(&IdMapping) -> u32), ("container_id", container)] {
        if let Some((one, other)) = overlap(&lines, first) {
            return Err(at.entry(one).at(name).invalid(format_args!("overlaps with entry {other}")));
        }
    }
    if id_map_text(&lines).len() > ID_TEXT_MAX {
        return Err(at.invalid(format_args!("too long: the kernel accepts at most {ID_TEXT_MAX} bytes")));
    }
    Ok(lines)
}

fn host(line: &IdMapping) -> u32 {
    line.host
}

fn container(line: &IdMapping) -> u32 {
    line.container
}

fn mapping(at: FieldPath<'_>, asked: v1::IdMapping) -> Result<IdMapping, InvalidField> {
    let v1::IdMapping { host_id, container_id, length } = asked;
    if length == 0 {
        return Err(at.at("length").invalid("0"));
    }
    for (name, first) in [("host_id", host_id), ("container_id", container_id)] {
        // The largest number is not a valid ID.
        if first.checked_add(length).is_none() {
            return Err(at.at(name).invalid(format_args!("{length} ids from {first} on exceed the largest id")));
        }
    }
    Ok(IdMapping { host: host_id, container: container_id, length })
}

/// Returns two entries that have an ID in common, the later one first.
fn overlap(lines: &[IdMapping], first: fn(&IdMapping) -> u32) -> Option<(usize, usize)> {
    let mut order: Vec<usize> = (0..lines.len()).collect();
    order.sort_by_key(|index| first(&lines[*index]));
    let meets = |a: usize, b: usize| u64::from(first(&lines[a])) + u64::from(lines[a].length) > first(&lines[b]).into();
    order.windows(2).find(|pair| meets(pair[0], pair[1])).map(|pair| (pair[0].max(pair[1]), pair[0].min(pair[1])))
}

/// Returns both mappings or neither: IDs of one kind alone cannot be mapped.
pub(crate) fn of_mount(
    at: FieldPath<'_>,
    uids: Vec<v1::IdMapping>,
    gids: Vec<v1::IdMapping>,
) -> Result<(Vec<IdMapping>, Vec<IdMapping>), InvalidField> {
    match (uids.is_empty(), gids.is_empty()) {
        (false, true) => Err(at.at("gidMappings").invalid("empty, but uidMappings is not")),
        (true, false) => Err(at.at("uidMappings").invalid("empty, but gidMappings is not")),
        _ => Ok((lines(at.at("uidMappings"), uids)?, lines(at.at("gidMappings"), gids)?)),
    }
}

pub(crate) fn to_wire(mapping: &IdMapping) -> v1::IdMapping {
    let IdMapping { host, container, length } = *mapping;
    v1::IdMapping { host_id: host, container_id: container, length }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(container_id: u32, host_id: u32, length: u32) -> v1::IdMapping {
        v1::IdMapping { host_id, container_id, length }
    }

    fn converted(lines: Vec<v1::IdMapping>) -> String {
        namespace(FieldPath::top("uids"), lines).unwrap_err().to_string()
    }

    #[test]
    fn valid_mappings_are_kept_unchanged() {
        let asked = vec![line(1000, 5000, 10), line(0, 65536, 1000), line(1010, 5010, 1), line(2000, 4_294_967_294, 1)];
        let kept = namespace(FieldPath::top("uids"), asked.clone()).unwrap();
        assert_eq!(kept.iter().map(to_wire).collect::<Vec<_>>(), asked);
        let many: Vec<_> = (0..340).map(|id| line(id, 1000 + id, 1)).collect();
        assert_eq!(lines(FieldPath::top("uids"), many.clone()).unwrap().len(), 340);
        assert!(lines(FieldPath::top("uids"), Vec::new()).unwrap().is_empty());
    }

    #[test]
    fn invalid_mappings_are_refused_by_field() {
        let many: Vec<_> = (0..341).map(|id| line(id, 1000 + id, 1)).collect();
        let long: Vec<_> = (0..300).map(|id| line(id, 4_000_000_000 + 2 * id, 1)).collect();
        let cases = [
            (vec![], "uids: empty, but mode is POD"),
            (vec![line(1, 1000, 10)], "uids: the container's id 0 is not mapped"),
            (vec![line(0, 1000, 0)], "uids[0].length: 0"),
            (
                vec![line(0, 0, 1), line(1, u32::MAX, 1)],
                "uids[1].host_id: 1 ids from 4294967295 on exceed the largest id",
            ),
            (vec![line(1, 0, u32::MAX)], "uids[0].container_id: 4294967295 ids from 1 on exceed the largest id"),
            (vec![line(0, 1000, 100_000), line(0, 200_000, 10)], "uids[1].container_id: overlaps with entry 0"),
            (vec![line(5, 50, 5), line(0, 40, 11)], "uids[1].host_id: overlaps with entry 0"),
            (many, "uids: 341 entries: the kernel accepts at most 340"),
            (long, "uids: too long: the kernel accepts at most 4095 bytes"),
        ];
        for (asked, words) in cases {
            assert_eq!(converted(asked), words);
        }
    }

    #[test]
    fn a_mount_maps_users_and_groups_or_neither() {
        let one = || vec![line(0, 1, 1)];
        let at = FieldPath::top("m");
        assert_eq!(
            of_mount(at, one(), vec![]).unwrap_err().to_string(),
            "m.gidMappings: empty, but uidMappings is not"
        );
        assert_eq!(
            of_mount(at, vec![], one()).unwrap_err().to_string(),
            "m.uidMappings: empty, but gidMappings is not"
        );
        // A file system has files of other users than root.
        assert_eq!(
            of_mount(at, vec![line(7, 8, 1)], one()).unwrap().0,
            [IdMapping { host: 8, container: 7, length: 1 }]
        );
        assert_eq!(of_mount(at, vec![], vec![]).unwrap(), (vec![], vec![]));
    }
}
