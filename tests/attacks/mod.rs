//! Attacks that have hit container runtimes, made on crisp. Races run in loops, and what became of the host is asked of the
//! kernel and of files that no container was given.
//!
//! Where each is withstood, by the paths of tests in this program; `src/` is said where they are beside the code.
//!
//! | advisory | what was done | tests |
//! |---|---|---|
//! | runc 2016-9962 | a container looks into processes on their way into it | `attacks::runtime_binary::processes_on_their_way_into_a_container_cannot_be_looked_into` |
//! | runc 2019-5736 | the runtime's program is written through `/proc/self/exe` | `attacks::runtime_binary::a_script_that_is_run_by_whoever_runs_it_does_not_reach_crisp`, `attacks::runtime_binary::the_program_that_a_shim_runs_is_sealed_for_good`, `container::libcontainer_gaps::the_shims_program_cannot_be_reached_from_a_container` |
//! | runc 2019-16884, 2023-28642 | a fake `/proc` swallows the label | `attacks::mount_targets::no_volume_lies_over_proc_whatever_path_or_link_leads_there`, `attacks::mount_targets::places_of_the_kernels_file_systems_that_are_no_directories_are_refused`, `recovery::failures::a_mount_over_the_root_or_proc_is_refused`, `apparmor::a_program_never_runs_without_the_profile_that_its_container_has`, `selinux::a_program_never_runs_without_the_label_that_its_container_has` |
//! | runc 2019-19921, 2023-27561 | two containers swap links in a volume under the mounts of a third | `attacks::races::two_containers_that_swap_links_for_each_other_see_nothing_of_the_host`, `attacks::races::a_volume_that_turns_into_a_link_to_proc_gets_nothing_mounted_there` |
//! | runc 2021-30465 | the target of a mount is exchanged for a link | `attacks::races::a_mount_into_a_volume_that_changes_meanwhile_never_leads_out` |
//! | runc 2022-29162, CRI-O 2022-27652, youki 2025-27612 | inheritable capabilities | `container::privileges::every_combination_of_rights_is_what_was_asked` |
//! | runc 2024-21626 | a leaked descriptor as the working directory | `attacks::fd_leaks::no_working_directory_is_a_descriptor_of_the_hosts`, `attacks::fd_leaks::no_command_begins_in_a_directory_of_the_hosts`, `attacks::fd_leaks::no_program_is_found_through_a_descriptor_of_crisps`, `attacks::fd_leaks::no_program_of_a_container_begins_with_more_than_three_descriptors`, `container::libcontainer_gaps::no_descriptor_leaks_into_a_container` |
//! | runc 2024-45310 | empty files are made on the host | `attacks::races::a_mount_whose_target_has_to_be_made_makes_nothing_on_the_host` |
//! | runc 2025-31133, youki 2025-62161 | `/dev/null` is something else while paths are hidden | `attacks::masked_paths::what_is_hidden_is_the_null_device_or_an_empty_directory_whatever_the_image_has`, `attacks::masked_paths::nobody_inside_can_uncover_or_change_what_hides`, `attacks::masked_paths::what_is_hidden_or_read_only_stays_so_under_volumes`, `attacks::races::what_is_hidden_in_a_volume_that_changes_meanwhile_hides_nothing_of_the_host` |
//! | runc 2025-52565 | `/dev/console` is something else | `attacks::mount_targets::links_of_an_image_below_dev_make_or_change_nothing_on_the_host` |
//! | runc 2025-52881, youki 2025-62596 | writes to proc are led elsewhere | `attacks::masked_paths::what_crisp_writes_for_a_container_goes_to_the_kernel_and_not_to_files_of_the_image` |
//! | youki 2025-54867; crun 2026-88264, 88265 | `/proc`, `/sys`, `/dev` and what is in it are links of the image | `attacks::mount_targets::places_of_the_kernels_file_systems_that_are_no_directories_are_refused`, `attacks::mount_targets::links_of_an_image_below_dev_make_or_change_nothing_on_the_host`, `attacks::mount_targets::devices_are_made_inside_whatever_their_paths_and_the_image_say`, `container::mounts::links_where_the_kernels_file_systems_belong_do_not_lead_to_the_host` |
//! | containerd 2020-15157, and its 2.3.5 | credentials follow a redirect or a layer's URL | `images::mirrors::where_a_registry_sends_a_pull_no_password_goes`, `images::mirrors::places_that_a_manifest_names_for_a_layer_are_not_gone_to` |
//! | containerd 2020-15257 | an abstract socket of the shim's | `attacks::neighbours::crisp_listens_nowhere_but_in_its_own_directories` |
//! | containerd 2021-21334 | variables of another container | `attacks::neighbours::containers_of_one_image_know_nothing_of_each_others_variables`, `images::formats::two_containers_of_one_image_share_no_environment` |
//! | containerd 2021-41103, 2024-25621 | directories that others get into | `attacks::neighbours::no_other_user_of_the_host_gets_into_the_directories_of_crisp`, `attacks::neighbours::no_file_that_a_container_can_write_becomes_a_program_of_roots`, `daemon::startup::no_directory_of_the_daemons_lets_others_in` |
//! | containerd 2021-32760, 2025-47290, and all like it | unpacking writes or changes elsewhere | `images::hostile::a_layer_that_reaches_out_is_refused_and_reaches_nothing`, `images::hostile::links_of_a_layer_lead_nowhere_but_into_its_image`; `src/image/layer/tests/hostile.rs`, `tests/fuzz` |
//! | containerd 2022-23648 | a volume of an image shows the host's files | `container::declared_volumes::no_volume_of_an_image_shows_anything_of_the_host`, `container::declared_volumes::volumes_that_cannot_be_are_refused_and_leave_nothing` |
//! | containerd 2022-31030, CRI-O 2022-1708 | output of a command without end | `container::exec::output_is_capped_and_the_command_is_not_held_up` |
//! | containerd 2022-23471, 2025-64329 | streams that are left half open | `stream::concurrency::ten_thousand_that_vanish_leave_no_trace` |
//! | containerd 2023-25153 | documents without end | `images::hostile_documents::documents_without_bound_are_not_read`, `images::hostile_documents::indexes_within_indexes_come_to_an_end` |
//! | containerd 2023-25173, CRI-O 2022-2995 | wrong groups | `container::privileges::groups_follow_the_policy`, `container::privileges::every_combination_of_rights_is_what_was_asked` |
//! | containerd 2024-40635, 2026-46680 | a user that wraps around | `container::image_config::users_out_of_range_or_unknown_are_refused_and_never_become_root`, `images::hostile::users_that_wrap_around_are_never_root` |
//! | containerd 2026-47262, CRI-O 2025-4437 | account files without end | `images::hostile::huge_account_files_are_not_read`, `container::image_config::account_files_that_are_none_are_refused_and_those_of_the_host_are_never_read` |
//! | containerd 2025-47291 | processes of a pod with its own users are out of its cgroup | `userns::processes::all_processes_are_in_the_pods_cgroup` |
//! | containerd 2026-53488 | labels of an image are taken for the container's | `images::hostile::labels_of_an_image_never_become_those_of_a_container`, `container::image_config::labels_of_an_image_are_nobody_elses` |
//! | containerd 2026-50195, 53489, 53492; CRI-O 2024-8676 | checkpoints | there are none yet: `daemon::startup::every_call_answers_and_those_to_come_say_so` |
//! | CRI-O 2022-0811, 2022-0532 | kernel parameters that are more than one, or the host's | `attacks::request_fields::no_kernel_parameter_of_a_pod_is_smuggled_in_or_becomes_the_hosts`, `container::namespaces::sysctls_are_set_in_the_pods_namespaces_only` |
//! | CRI-O 2022-4318, 2026-15809 | a variable with a line break becomes an account | `attacks::request_fields::no_variable_becomes_more_than_one_or_an_account`, `container::image_config::variables_come_from_the_image_then_from_the_container_and_smuggle_nothing_in` |
//! | CRI-O 2023-6476, 2024-3154; Kata 2020-27151 | annotations that the runtime obeys | `attacks::request_fields::no_annotation_changes_anything_of_a_container`, `attacks::request_fields::no_limit_is_written_to_a_file_that_is_none_of_the_containers`, `daemon::pod_resources::a_clients_annotation_cannot_pass_for_what_was_announced` |
//! | CRI-O 2024-5154 | `/etc/mtab` and the like are links | `container::image_config::an_image_without_places_to_mount_on_gets_them_inside_also_with_a_read_only_root` |
//! | CRI-O 2025-0750 | paths of logs that lead elsewhere | `attacks::logs::a_log_is_a_plain_file_in_the_pods_own_directory_or_nothing`, `attacks::logs::a_directory_of_logs_that_is_a_link_is_not_followed`, `container::logs::a_log_cannot_leave_the_pods_directory` |
//! | conmon 2019-14891 | the monitor is killed for its container's memory | `recovery::shims::the_shim_stands_apart_from_the_memory_of_its_containers` |
//! | CDI, by files and by annotations | devices, mounts and hooks that nobody granted | `cdi` |
//! | NVIDIA Container Toolkit 2025-23266 | variables of an image reach hooks of the host's | `cdi::hostile::no_variable_or_file_of_an_image_reaches_a_hook_of_the_hosts` |
//! | Kata 2020-2023, 2024, 2025, 2026 | mounts cross between container and host | `attacks::propagation::what_is_mounted_into_a_volume_for_a_container_is_not_mounted_on_the_host`, `container::mounts::a_private_volume_sees_no_later_mount_of_the_host` |
//! | Kata 2026-24054 | an image without layers | `images::hostile_documents::documents_that_make_no_sense_are_refused_by_name` |
//! | Kata 2026-24834, 2026-47243 | the guest's root, the helper of its file system | there are no virtual machines |
//! | Kubernetes 2020-8557 | `/etc/hosts` fills the node | `attacks::neighbours::a_container_that_fills_the_files_of_its_pod_fills_nothing_else` |
//! | Docker 2019-14271 | a library of the image's is loaded to look up a user | `attacks::runtime_binary::no_library_that_an_image_names_is_asked_for_its_accounts` |
//! | runc, before its advisories | the host's `/dev/null`, given to a container, is changed by it | `attacks::fd_leaks::no_command_is_given_the_hosts_null_device_to_change`, `attacks::runtime_binary::the_init_of_a_shared_pid_namespace_gives_nothing_to_the_most_privileged` |
//! | none yet: user namespaces | root in there, who may mount, makes a read-only volume writable | `userns::volumes::root_of_a_container_that_may_mount_does_not_undo_what_a_volume_is_not_to_do` |
//! | none yet: hooks | a neighbour looks through a hook at the host's files | `cdi::userns::nobody_in_the_pod_looks_through_a_hook_at_the_hosts_files` |
//! | none yet: renames | a neighbour's renames keep containers from being made | `attacks::races::renames_elsewhere_do_not_keep_a_container_from_being_made` |
//! | none yet: shared processes | the first process of a pod, and neighbours with other users | `attacks::runtime_binary::the_init_of_a_shared_pid_namespace_gives_nothing_to_the_most_privileged`, `attacks::runtime_binary::neighbours_in_a_pod_look_into_each_other_only_as_their_users_permit`, `attacks::runtime_binary::a_neighbour_that_stops_whoever_comes_does_not_keep_the_pod_from_its_end`, `container::namespaces::the_init_of_a_shared_pid_namespace_leads_nowhere` |
//! | none yet: the host's processes | a container that sees the shim | `attacks::runtime_binary::the_shim_is_out_of_reach_of_a_container_that_sees_the_hosts_processes` |
//! | none yet: CAP_SYS_PTRACE | a container traces processes on their way into its PID namespace, while they have the rights and files of the host | `attacks::tracer::a_container_that_traces_commands_on_their_way_in_gains_nothing`, `attacks::tracer::a_container_that_traces_its_neighbours_on_their_way_in_gains_nothing`, `attacks::tracer::a_container_that_traces_who_joins_its_processes_gains_nothing`, `attacks::tracer::a_container_that_is_created_and_not_started_has_no_more_rights_than_when_it_runs`, `attacks::tracer::a_profile_that_lets_no_process_be_born_holds_for_commands_and_neighbours` |
//! | none yet: terminals | a container opens all pseudo terminals of the node | `attacks::neighbours::a_container_gets_no_more_pseudo_terminals_than_its_share` |
//! | none yet: keys | a container uses up the quota of keys of its user | `userns::keys::containers_start_while_the_quota_of_keys_is_used_up` |
//! | none yet: resizing | a neighbour is killed, starved, or loses its devices by a change | `update::memory::a_limit_below_what_is_held_is_refused_with_numbers_and_kills_nobody`, `resize::memory::a_limit_below_what_is_held_kills_nothing_and_a_refusal_changes_nothing`, `resize::patches::devices_are_as_open_and_as_shut_as_before`, `update::concurrency::in_a_storm_of_changes_every_container_ends_as_it_was_asked_last_and_nothing_is_harmed`, `container::cgroups::cgroups_are_shown_read_only_and_only_the_containers_own` |

mod fd_leaks;
mod host_state;
mod logs;
mod masked_paths;
mod mount_targets;
mod neighbours;
mod propagation;
mod racer;
mod races;
mod request_fields;
mod runtime_binary;
mod tracer;

use std::fs;
use std::path::Path;

use host_state::Outside;
pub(crate) use racer::Racer;

#[test]
fn every_test_that_the_table_names_is_there() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = include_str!("mod.rs").lines().filter(|line| line.starts_with("//! |"));
    let names = table.flat_map(|line| line.split('`')).filter(|word| word.contains("::") && !word.contains(' '));
    let mut count = 0;
    for name in names {
        let (module, function) = name.rsplit_once("::").unwrap();
        let path = tests.join(module.replace("::", "/"));
        let file = [path.with_extension("rs"), path.join("mod.rs")].into_iter().find(|file| file.exists());
        let text = file.map(|file| fs::read_to_string(file).unwrap()).unwrap_or_default();
        assert!(text.contains(&format!("#[test]\nfn {function}()")), "there is no test {name}");
        count += 1;
    }
    assert!(count > 60, "{count}");
}
