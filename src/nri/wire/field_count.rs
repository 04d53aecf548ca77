//! Bounds the memory of an answer before it is decoded.
//!
//! Two bytes can be an element of a list, and an element is a struct of up to several hundred bytes
//! in memory: 4 MiB could become gigabytes.

/// The largest number of fields of an answer, those of nested messages included. 2,000 updates of
/// all limits of a container have about 50,000.
pub const FIELDS_MAX: usize = 65_536;

/// The fields of a message that are messages themselves, by number.
#[derive(Debug)]
pub(crate) struct Shape(pub(super) &'static [(u32, &'static Shape)]);

/// A message without nested messages.
pub(crate) static FLAT: Shape = Shape(&[]);
/// Counts maps with entries like strings.
static RESOURCES: Shape = Shape(&[(1, &FLAT), (2, &FLAT), (3, &FLAT), (6, &FLAT), (7, &DEVICE), (8, &FLAT)]);
static DEVICE: Shape = Shape(&[(3, &FLAT), (4, &FLAT), (5, &FLAT), (6, &FLAT), (7, &FLAT)]);
static UPDATE: Shape = Shape(&[(2, &Shape(&[(1, &RESOURCES)]))]);
static HOOK: Shape = Shape(&[(4, &FLAT)]);
static HOOKS: Shape = Shape(&[(1, &HOOK), (2, &HOOK), (3, &HOOK), (4, &HOOK), (5, &HOOK), (6, &HOOK)]);
static SECCOMP: Shape = Shape(&[(7, &Shape(&[(3, &FLAT), (4, &FLAT)]))]);
static LINUX: Shape = Shape(&[
    (1, &DEVICE),
    (2, &RESOURCES),
    (5, &FLAT),
    (6, &SECCOMP),
    (7, &FLAT),
    (8, &FLAT),
    (9, &Shape(&[(2, &FLAT)])),
    (10, &FLAT),
    (11, &Shape(&[(2, &FLAT)])),
    (12, &FLAT),
]);
static ADJUSTMENT: Shape =
    Shape(&[(2, &FLAT), (3, &FLAT), (4, &FLAT), (5, &HOOKS), (6, &LINUX), (7, &FLAT), (8, &FLAT)]);
/// CreateContainerResponse.
pub(crate) static ANSWER_TO_CREATE: Shape = Shape(&[(1, &ADJUSTMENT), (2, &UPDATE), (3, &FLAT)]);
/// The responses and requests with `update = 1` and `evict = 2`.
pub(crate) static ANSWER_WITH_UPDATES: Shape = Shape(&[(1, &UPDATE), (2, &FLAT)]);

/// Counts the fields of `bytes` and of its nested messages, up to one more than [`FIELDS_MAX`].
/// Malformed bytes count until the error, which the decoder reports.
pub(crate) fn count(bytes: &[u8], shape: &Shape) -> usize {
    let mut fields = 0;
    walk(bytes, shape, &mut fields);
    fields
}

/// Counts the fields of an answer to CreateContainer; for the fuzzer.
#[must_use]
pub fn count_fields(bytes: &[u8]) -> usize {
    count(bytes, &ANSWER_TO_CREATE)
}

fn walk(mut bytes: &[u8], shape: &Shape, fields: &mut usize) -> Option<()> {
    while !bytes.is_empty() && *fields <= FIELDS_MAX {
        let tag = varint(&mut bytes)?;
        *fields += 1;
        match tag & 7 {
            0 => {
                // A packed list has an element per byte and is not limited here: NRI's are of numbers.
                varint(&mut bytes)?;
            }
            1 => skip(&mut bytes, 8).map(drop)?,
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let content = skip(&mut bytes, length)?;
                let nested = shape.0.iter().find(|(number, _)| u64::from(*number) == tag >> 3);
                if let Some((_, nested)) = nested {
                    walk(content, nested, fields)?;
                }
            }
            5 => skip(&mut bytes, 4).map(drop)?,
            _ => return None,
        }
    }
    Some(())
}

fn skip<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (skipped, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(skipped)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for (position, byte) in bytes.iter().enumerate().take(10) {
        number |= u64::from(byte & 0x7f) << (7 * position).min(63);
        if byte & 0x80 == 0 {
            *bytes = &bytes[position + 1..];
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use prost::Message as _;

    use super::*;
    use crate::api::{
        ContainerAdjustment, ContainerUpdate, CreateContainerResponse, LinuxContainerUpdate, LinuxPids, LinuxResources,
        Mount,
    };

    #[test]
    fn fields_of_nested_messages_count() {
        let resources = LinuxResources { pids: Some(LinuxPids { limit: 7 }), ..LinuxResources::default() };
        let update = ContainerUpdate {
            container_id: "a".to_owned(),
            linux: Some(Box::new(LinuxContainerUpdate { resources: Some(Box::new(resources)) })),
            ignore_failure: true,
        };
        let answer = CreateContainerResponse { update: vec![update.clone(), update], ..Default::default() };
        // Per update: itself, id, linux, resources, pids, limit and ignore_failure.
        assert_eq!(count(&answer.encode_to_vec(), &ANSWER_TO_CREATE), 14);
    }

    #[test]
    fn counting_two_million_empty_elements_ends_at_the_limit() {
        let begun = Instant::now();
        assert_eq!(count(&[0x12, 0].repeat(2 << 20), &ANSWER_TO_CREATE), FIELDS_MAX + 1);
        let adjust = ContainerAdjustment { mounts: vec![Mount::default(); 100_000], ..Default::default() };
        let answer = CreateContainerResponse { adjust: Some(adjust), ..Default::default() };
        assert_eq!(count(&answer.encode_to_vec(), &ANSWER_TO_CREATE), FIELDS_MAX + 1);
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn malformed_bytes_end_the_count() {
        for bytes in [&[0x0a][..], &[0x0a, 0xff, 0xff], &[0xff; 20], &[0x0b], &[0x0a, 0x02, 0x12]] {
            assert!(count(bytes, &ANSWER_TO_CREATE) <= 3);
        }
    }
}
