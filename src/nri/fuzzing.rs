//! Functions for the fuzzer in `tests/fuzz`. Not part of a release.

use prost::Message as _;

use crate::api::{Container, CreateContainerResponse, UpdateContainerResponse};
use crate::merge::{Allow, Creation, Group, Resize};
use crate::wire::{Decoder, FIELDS_MAX, Message, WireError, count_fields};

/// Decodes `data` as the bytes of a plugin, at once and in small pieces, and checks that both
/// results are equal.
pub fn wire(data: &[u8]) {
    let all = |size: usize| -> (Vec<Message>, Result<(), WireError>) {
        let (mut decoder, mut messages) = (Decoder::default(), Vec::new());
        for piece in data.chunks(size) {
            if let Err(error) = decoder.feed(piece, &mut |message| messages.push(message)) {
                return (messages, Err(error));
            }
        }
        (messages, Ok(()))
    };
    let whole = all(data.len().max(1));
    assert!(whole == all(3), "messages depend on how their bytes arrive");
    for message in whole.0 {
        answers(&message.payload);
    }
}

fn answers(payload: &[u8]) {
    if count_fields(payload) <= FIELDS_MAX {
        drop(CreateContainerResponse::decode(payload));
        drop(UpdateContainerResponse::decode(payload));
    }
}

/// Merges the parts of `data`, each a length of two bytes and an answer, as the answers of several
/// plugins. Checks that each key of the result has one owner and one value.
pub fn merge(mut data: &[u8]) {
    let all = [Group::Hooks, Group::Seccomp, Group::Namespaces, Group::Sysctl, Group::CgroupsPath];
    let allow = Allow::default().with(all);
    let mut creation = Creation::new(Container { id: "c".to_owned(), ..Container::default() });
    let mut resize = Resize::new("c".to_owned(), Default::default());
    let mut number = 10;
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let (part, rest) = rest.split_at(usize::from(u16::from_be_bytes(*length)).min(rest.len()));
        data = rest;
        let plugin = format!("{number}-fuzz");
        number += 1;
        if let Ok(answer) = UpdateContainerResponse::decode(part) {
            drop(resize.add(&plugin, &allow, answer));
        }
        if let Ok(answer) = CreateContainerResponse::decode(part)
            && creation.add(&plugin, &allow, answer).is_err()
        {
            return;
        }
    }
    drop(resize.finish());
    let shown = creation.container().clone();
    let created = creation.finish();
    let mut destinations: Vec<_> = created.adjust.mounts.iter().map(|mount| &mount.destination).collect();
    destinations.sort();
    destinations.dedup();
    assert_eq!(destinations.len(), created.adjust.mounts.len(), "a mount has two values");
    for mount in &shown.mounts {
        let owner = created.owners.get(crate::api::Field::Mounts, &mount.destination);
        assert!(owner.is_some(), "a mount has no owner");
    }
    assert!(shown.env.iter().all(|variable| variable.contains('=')), "a variable has no value");
}
