//! Limits in answers: which are set, which are supported, and how they are laid over others.

use super::{MergeError, Owners, check};
use crate::api::{Field, LinuxCpu, LinuxMemory, LinuxResources};

/// Removes the values that mean "as before": 0 and "".
pub(super) fn drop_unset(resources: &mut LinuxResources) {
    if let Some(memory) = &mut resources.memory {
        memory.limit.take_if(|limit| limit.value == 0);
        memory.reservation.take_if(|limit| limit.value == 0);
        memory.swap.take_if(|limit| limit.value == 0);
        memory.kernel.take_if(|limit| limit.value == 0);
        memory.kernel_tcp.take_if(|limit| limit.value == 0);
        memory.swappiness.take_if(|value| value.value == 0);
        memory.disable_oom_killer.take_if(|is| !is.value);
        memory.use_hierarchy.take_if(|is| !is.value);
    }
    if let Some(cpu) = &mut resources.cpu {
        cpu.shares.take_if(|shares| shares.value == 0);
        cpu.quota.take_if(|quota| quota.value == 0);
        cpu.period.take_if(|period| period.value == 0);
        cpu.realtime_runtime.take_if(|runtime| runtime.value == 0);
        cpu.realtime_period.take_if(|period| period.value == 0);
    }
    resources.pids.take_if(|pids| pids.limit == 0);
    resources.blockio_class.take_if(|class| class.value.is_empty());
    resources.rdt_class.take_if(|class| class.value.is_empty());
    resources.hugepage_limits.retain(|limit| limit.limit != 0);
    resources.unified.retain(|_, value| !value.is_empty());
}

/// Refuses limits that crisp cannot set, and names and values that no cgroup file has.
pub(super) fn check(resources: &LinuxResources, plugin: &str) -> Result<(), MergeError> {
    let memory = resources.memory.as_ref();
    let cpu = resources.cpu.as_ref();
    let unsupported = [
        (memory.is_some_and(|memory| memory.kernel.is_some()), "memory.kernel"),
        (memory.is_some_and(|memory| memory.kernel_tcp.is_some()), "memory.kernel_tcp"),
        (memory.is_some_and(|memory| memory.swappiness.is_some()), "memory.swappiness"),
        (memory.is_some_and(|memory| memory.disable_oom_killer.is_some()), "memory.disable_oom_killer"),
        (memory.is_some_and(|memory| memory.use_hierarchy.is_some()), "memory.use_hierarchy"),
        (cpu.is_some_and(|cpu| cpu.realtime_runtime.is_some()), "cpu.realtime_runtime"),
        (cpu.is_some_and(|cpu| cpu.realtime_period.is_some()), "cpu.realtime_period"),
        (resources.blockio_class.is_some(), "blockio_class"),
        (resources.rdt_class.is_some(), "rdt_class"),
    ];
    if let Some((_, field)) = unsupported.iter().find(|(is_set, _)| *is_set) {
        return Err(MergeError::NotSupported { plugin: plugin.to_owned(), field });
    }
    for (file, value) in &resources.unified {
        check::cgroup_file(plugin, file, value)?;
    }
    for set in cpu.into_iter().flat_map(|cpu| [&cpu.cpus, &cpu.mems]) {
        check::cpu_set(plugin, set)?;
    }
    for limit in &resources.hugepage_limits {
        check::page_size(plugin, &limit.page_size)?;
    }
    Ok(())
}

/// Makes `plugin` the owner of each limit that is set, or of none if there is a conflict.
pub(super) fn claim(resources: &LinuxResources, owners: &mut Owners, plugin: &str) -> Result<(), MergeError> {
    let fields = fields(resources);
    fields.iter().try_for_each(|(field, key)| owners.check(*field, key, plugin))?;
    fields.iter().for_each(|(field, key)| owners.take(*field, key, plugin));
    Ok(())
}

/// Lists the limits that are set.
fn fields(resources: &LinuxResources) -> Vec<(Field, &str)> {
    let none = (LinuxMemory::default(), LinuxCpu::default());
    let memory = resources.memory.as_ref().unwrap_or(&none.0);
    let cpu = resources.cpu.as_ref().unwrap_or(&none.1);
    let single = [
        (memory.limit.is_some(), Field::MemLimit),
        (memory.reservation.is_some(), Field::MemReservation),
        (memory.swap.is_some(), Field::MemSwapLimit),
        (cpu.shares.is_some(), Field::CpuShares),
        (cpu.quota.is_some(), Field::CpuQuota),
        (cpu.period.is_some(), Field::CpuPeriod),
        (!cpu.cpus.is_empty(), Field::CpuSetCpUs),
        (!cpu.mems.is_empty(), Field::CpuSetMems),
        (resources.pids.is_some(), Field::PidsLimit),
    ];
    let single = single.into_iter().filter(|(is_set, _)| *is_set).map(|(_, field)| (field, ""));
    let pages = resources.hugepage_limits.iter().map(|limit| (Field::HugepageLimits, limit.page_size.as_str()));
    let files = resources.unified.keys().map(|file| (Field::CgroupsUnified, file.as_str()));
    single.chain(pages).chain(files).collect()
}

/// Sets the limits of `patch` in `target`.
pub(super) fn overlay(target: &mut LinuxResources, patch: &LinuxResources) {
    fn set<T: Clone>(target: &mut Option<T>, patch: &Option<T>) {
        if patch.is_some() {
            target.clone_from(patch);
        }
    }
    fn set_text(target: &mut String, patch: &String) {
        if !patch.is_empty() {
            target.clone_from(patch);
        }
    }
    if let Some(patch) = &patch.memory {
        let memory = target.memory.get_or_insert_default();
        set(&mut memory.limit, &patch.limit);
        set(&mut memory.reservation, &patch.reservation);
        set(&mut memory.swap, &patch.swap);
    }
    if let Some(patch) = &patch.cpu {
        let cpu = target.cpu.get_or_insert_default();
        set(&mut cpu.shares, &patch.shares);
        set(&mut cpu.quota, &patch.quota);
        set(&mut cpu.period, &patch.period);
        set_text(&mut cpu.cpus, &patch.cpus);
        set_text(&mut cpu.mems, &patch.mems);
    }
    set(&mut target.pids, &patch.pids);
    for limit in &patch.hugepage_limits {
        target.hugepage_limits.retain(|known| known.page_size != limit.page_size);
        target.hugepage_limits.push(limit.clone());
    }
    target.unified.extend(patch.unified.iter().map(|(file, value)| (file.clone(), value.clone())));
    target.devices.extend(patch.devices.iter().cloned());
}
