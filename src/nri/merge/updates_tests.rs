use super::{Allow, Group, MergeError, Resize, Update, Updates};
use crate::api::*;

fn update(container: &str, resources: LinuxResources) -> ContainerUpdate {
    ContainerUpdate {
        container_id: container.to_owned(),
        linux: Some(Box::new(LinuxContainerUpdate { resources: Some(Box::new(resources)) })),
        ignore_failure: false,
    }
}

fn pids(limit: i64) -> LinuxResources {
    LinuxResources { pids: Some(LinuxPids { limit }), ..LinuxResources::default() }
}

fn memory(limit: i64) -> LinuxResources {
    let limit = Some(OptionalInt64 { value: limit });
    LinuxResources { memory: Some(LinuxMemory { limit, ..LinuxMemory::default() }), ..LinuxResources::default() }
}

fn answer(update: Vec<ContainerUpdate>) -> UpdateContainerResponse {
    UpdateContainerResponse { update, evict: Vec::new() }
}

#[test]
fn an_answer_replaces_the_request_and_zero_means_as_before() {
    let mut resize = Resize::new("c".to_owned(), memory(100));
    let allow = Allow::default();
    resize.add("10-a", &allow, answer(vec![update("c", memory(0)), update("c", pids(7))])).unwrap();
    let seen = resize.resources();
    assert_eq!((seen.memory.unwrap().limit.unwrap().value, seen.pids.unwrap().limit), (100, 7));
    resize.add("20-b", &allow, answer(vec![update("c", memory(90)), update("other", memory(50))])).unwrap();
    let resized = resize.finish();
    assert_eq!(resized.resources.memory.unwrap().limit.unwrap().value, 90);
    assert_eq!(resized.adjusted.pids.unwrap().limit, 7);
    assert_eq!(resized.owners.get(Field::MemLimit, ""), Some("20-b"));
    assert_eq!(resized.owners.get(Field::PidsLimit, ""), Some("10-a"));
    assert_eq!(resized.updates.iter().map(|update| &update.container_id[..]).collect::<Vec<_>>(), ["other"]);
}

#[test]
fn without_answers_the_request_is_unchanged() {
    let resized = Resize::new("c".to_owned(), memory(100)).finish();
    assert_eq!((resized.resources, resized.adjusted), (memory(100), LinuxResources::default()));
    assert_eq!((resized.updates, resized.evictions), (Vec::new(), Vec::new()));
}

#[test]
fn two_plugins_that_set_the_same_limit_of_a_container_conflict() {
    let mut updates = Updates::default();
    let allow = Allow::default();
    updates.add("10-a", &allow, vec![update("x", pids(1)), update("y", pids(1))]).unwrap();
    let refused = updates.add("20-b", &allow, vec![update("x", pids(2))]).unwrap_err();
    assert_eq!(refused.to_string(), "plugins \"20-b\" and \"10-a\" both tried to set PidsLimit");
}

#[test]
fn a_conflict_in_an_update_whose_failure_is_ignored_drops_that_update() {
    let mut updates = Updates::default();
    let allow = Allow::default();
    updates.add("10-a", &allow, vec![update("x", pids(1))]).unwrap();
    let mut both = pids(2);
    both.memory = memory(5).memory;
    let optional = ContainerUpdate { ignore_failure: true, ..update("x", both) };
    updates.add("20-b", &allow, vec![optional]).unwrap();
    let (updates, _) = updates.finish();
    assert_eq!(updates[0].resources, pids(1), "no part of the dropped update is left");
    assert_eq!((updates[0].owners.iter().count(), updates[0].ignore_failure), (1, false));
}

#[test]
fn an_update_is_optional_only_if_all_are() {
    let mut updates = Updates::default();
    let optional = |id: &str, limits| ContainerUpdate { ignore_failure: true, ..update(id, limits) };
    let all = vec![optional("x", pids(1)), optional("y", pids(1)), update("y", memory(1)), update("z", pids(0))];
    updates.add("10-a", &Allow::default(), all).unwrap();
    let (updates, _) = updates.finish();
    let seen: Vec<_> = updates.iter().map(|update| (&update.container_id[..], update.ignore_failure)).collect();
    assert_eq!(seen, [("x", true), ("y", false)], "an update without a limit is left out");
}

#[test]
fn updates_and_evictions_need_their_groups() {
    let mut updates = Updates::default();
    let none = Allow::from_iter([]);
    let refused = |group| MergeError::NotAllowed { plugin: "10-a".to_owned(), group };
    assert_eq!(updates.add("10-a", &none, vec![update("x", pids(1))]), Err(refused(Group::Updates)));
    let evict = vec![ContainerEviction { container_id: "x".to_owned(), reason: "r".to_owned() }];
    assert_eq!(updates.evict("10-a", &none, evict.clone()), Err(refused(Group::Evictions)));
    updates.evict("10-a", &Allow::default(), evict).unwrap();
    assert_eq!(updates.finish().1[0].plugin, "10-a");
}

#[test]
fn device_rules_of_an_update_are_refused_by_name() {
    let limits = LinuxResources { devices: vec![LinuxDeviceCgroup::default()], ..LinuxResources::default() };
    let refused = Updates::default().add("10-a", &Allow::default(), vec![update("x", limits)]).unwrap_err();
    assert!(matches!(refused, MergeError::NotSupported { .. }), "{refused}");
}

#[test]
fn twenty_thousand_updates_of_one_container_are_merged_in_time() {
    let begun = std::time::Instant::now();
    let mut updates = Updates::default();
    let all = (0..20_000).map(|n| update("x", pids(n + 1))).collect();
    updates.add("10-a", &Allow::default(), all).unwrap();
    let (merged, _): (Vec<Update>, _) = updates.finish();
    assert_eq!(merged[0].resources, pids(20_000));
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
}
