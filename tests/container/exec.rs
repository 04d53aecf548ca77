//! ExecSync: output, exit codes, timeouts, bounds, and the rights of the command.

use std::time::Instant;

use cri_api::v1;
use tonic::Code;

use crate::support::client::{Done, container, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, scrape, seconds, times, wait_for};
use crate::support::kernel_state;

#[test]
fn output_and_exit_code_are_exact() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let done = client.exec(&id, &["sh", "-c", "printf 'out\\n\\n'; printf 'err' >&2; exit 42"]);
    assert_eq!(done, Done { code: 42, stdout: "out\n\n".into(), stderr: "err".into() });
    assert_eq!(client.exec(&id, &["true"]), Done { code: 0, stdout: String::new(), stderr: String::new() });
    assert_eq!(client.exec(&id, &["sh", "-c", "kill -9 $$"]).code, 137);
    let bytes = client.try_exec(&id, &["sh", "-c", "printf '\\377\\000\\001'"], 0).unwrap();
    assert_eq!(bytes.stdout, [0xff, 0, 1]);
    assert_eq!(client.exec(&id, &["cat"]).stdout, "", "stdin is empty");
}

#[test]
fn a_command_that_times_out_is_killed_with_all_its_children() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.pids(&id);
    let begin = Instant::now();
    let script = "trap '' TERM; sleep 1000 & setsid sleep 1000 & setsid sh -c 'sleep 1000' & sleep 1000";
    let refusal = client.try_exec(&id, &["sh", "-c", script], 1).unwrap_err();
    assert_eq!(refusal.code(), Code::DeadlineExceeded, "{refusal:?}");
    assert!(begin.elapsed() < seconds(10), "{:?}", begin.elapsed());
    wait_for("everything of the command to go", seconds(3), || {
        let now = daemon.pids(&id);
        now.iter().all(|pid| before.contains(pid)).then_some(())
    });
    assert_eq!(client.status(&id).state(), v1::ContainerState::ContainerRunning);
    assert_eq!(client.exec_script(&id, "echo still here"), "still here\n");
}

#[test]
fn a_command_that_times_out_is_killed_with_daemonized_children() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.pids(&id);
    // Like daemons: forked twice, in their own session, without our streams, with parents that exit
    // before the timeout.
    let script =
        "for n in 1 2 3; do (setsid sh -c '(sleep 1000 < /dev/null > /dev/null 2>&1 &)' &) ; done; exec sleep 1000";
    let refusal = client.try_exec(&id, &["sh", "-c", script], 1).unwrap_err();
    assert_eq!(refusal.code(), Code::DeadlineExceeded, "{refusal:?}");
    wait_for("everything of the command to go", seconds(3), || {
        daemon.pids(&id).iter().all(|pid| before.contains(pid)).then_some(())
    });
    // Children of a command that exits by itself are not killed.
    client.exec(&id, &["sh", "-c", "(setsid sleep 999 < /dev/null > /dev/null 2>&1 &)"]);
    assert_eq!(daemon.pids(&id).len(), before.len() + 1);
}

#[test]
fn a_command_that_times_out_is_killed_with_children_without_utf8_names() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.pids(&id);
    // The kernel calls a script by the name of its file, and shows that name as it is.
    let script = "name=/$(printf '\\377) R 1 1 1'); printf '#!/bin/sh\\ntrap \"\" PIPE; while :; do sleep 0.1; done\\n' > \"$name\"; \
                  chmod 755 \"$name\"; \"$name\" & exec sleep 1000";
    let refusal = client.try_exec(&id, &["sh", "-c", script], 1).unwrap_err();
    assert_eq!(refusal.code(), Code::DeadlineExceeded, "{refusal:?}");
    wait_for("everything of the command to go", seconds(3), || {
        daemon.pids(&id).iter().all(|pid| before.contains(pid)).then_some(())
    });
}

#[test]
fn exec_in_a_frozen_container_is_refused() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let freeze = |frozen: bool| {
        let dirs = kernel_state::cgroups_under(daemon.env.cgroup());
        for dir in dirs.iter().filter(|dir| dir.ends_with(&id)) {
            let words = [
                ("freezer.state", if frozen { "FROZEN" } else { "THAWED" }),
                ("cgroup.freeze", if frozen { "1" } else { "0" }),
            ];
            for (file, word) in words.into_iter().filter(|(file, _)| dir.join(file).exists()) {
                std::fs::write(dir.join(file), word).unwrap();
            }
        }
    };
    freeze(true);
    let begin = Instant::now();
    let refusal = client.try_exec(&id, &["true"], 0).unwrap_err();
    assert!(begin.elapsed() < seconds(5), "{:?}", begin.elapsed());
    freeze(false);
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    assert!(refusal.message().contains("paused"), "{refusal:?}");
    assert_eq!(client.exec_script(&id, "echo fine"), "fine\n");
}

#[test]
fn a_command_frozen_during_its_start_is_killed_on_timeout() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let dirs = kernel_state::cgroups_under(daemon.env.cgroup());
    let (file, word) = if kernel_state::is_v2() { ("cgroup.freeze", "1") } else { ("freezer.state", "FROZEN") };
    let files: Vec<_> = dirs.iter().filter(|dir| dir.ends_with(&id)).map(|dir| dir.join(file)).collect();
    let files: Vec<_> = files.into_iter().filter(|file| file.exists()).collect();
    assert!(!files.is_empty());
    let before = daemon.pids(&id).len();
    let watched = daemon.env.cgroup().to_owned();
    let container = id.clone();
    // When the command has joined the cgroup and before its time is over.
    let freeze = std::thread::spawn(move || {
        wait_for("the command", seconds(10), || {
            (kernel_state::pids_in(&container, &watched).len() > before).then_some(())
        });
        files.iter().for_each(|file| std::fs::write(file, word).unwrap());
    });
    let begin = Instant::now();
    let refusal = client.try_exec(&id, &["sleep", "1000"], 2).unwrap_err();
    let took = begin.elapsed();
    freeze.join().unwrap();
    assert_eq!(refusal.code(), Code::DeadlineExceeded, "{refusal:?}");
    assert!(took < seconds(2) + std::time::Duration::from_secs(6), "{took:?}");
    client.stop_pod(&pod.id).unwrap();
}

#[test]
fn a_command_within_its_timeout_is_not_killed() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let answer = client.try_exec(&id, &["sh", "-c", "sleep 0.2; echo done"], 60).unwrap();
    assert_eq!((answer.exit_code, answer.stdout), (0, b"done\n".to_vec()));
}

#[test]
fn output_is_limited_and_the_command_is_not_blocked() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let megabytes = times(40, 20);
    let script = format!("dd if=/dev/zero bs=1M count={megabytes} 2> /dev/null; echo end >&2; exit 3");
    let answer = client.try_exec(&id, &["sh", "-c", &script], 0).unwrap();
    assert_eq!(answer.exit_code, 3);
    let size = answer.stdout.len() + answer.stderr.len();
    assert!(size <= 16 << 20 && size > 15 << 20, "{size}");
    // The kept output is limited.
    let held = kernel_state::holding(daemon.pid()).rss;
    assert!(held < 200 << 10, "{held} KiB");
}

#[test]
fn a_background_child_does_not_delay_the_response() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let held = || (kernel_state::holding(daemon.pid()).fds, kernel_state::holding(daemon.shims()[0]).fds);
    let before = held();
    for _ in 0..times(20, 3) {
        let begin = Instant::now();
        let done = client.exec(&id, &["sh", "-c", "sleep 1000 & echo started; exit 6"]);
        assert_eq!((done.code, done.stdout.as_str()), (6, "started\n"));
        assert!(begin.elapsed() < seconds(10), "{:?}", begin.elapsed());
    }
    // They keep their ends of the pipes; no other process has the others.
    wait_for("the pipes to be closed", seconds(10), || {
        let (daemon, shim) = held();
        (daemon <= before.0 && shim <= before.1).then_some(())
    });
}

#[test]
fn exec_requires_a_running_container() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.create(&pod, "main", &["sleep", "1000"]);
    let refusal = client.try_exec(&id, &["true"], 0).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    client.start(&id).unwrap();
    client.stop(&id, 0).unwrap();
    let refusal = client.try_exec(&id, &["true"], 0).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
}

#[test]
fn a_missing_command_is_named_and_leaves_no_child() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.snapshot();
    for program in ["no-such-program", "/no/such/program", "/etc/passwd", "/etc"] {
        let refusal = client.try_exec(&id, &[program], 0).unwrap_err();
        assert!(refusal.message().contains(program), "{refusal:?}");
        assert_ne!(refusal.code(), Code::NotFound, "the container is there: {refusal:?}");
    }
    daemon.wait_until_like(&before);
}

#[test]
fn a_command_has_the_user_and_rights_of_the_container() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &crate::support::client::IDLE);
    config.working_dir = "/tmp".into();
    config.envs.push(v1::KeyValue { key: "OWN".into(), value: b"value".to_vec() });
    security(&mut config).run_as_user = Some(v1::Int64Value { value: 1000 });
    security(&mut config).supplemental_groups = vec![4000];
    let id = client.run_config(&pod, config);
    let seen = client.exec_script(&id, "pwd; echo $OWN $HOME $HOSTNAME; id -u; id -g; id -G");
    let mut lines = seen.lines();
    assert_eq!(lines.next(), Some("/tmp"));
    assert_eq!(lines.next(), Some("value /home/user pod"));
    assert_eq!((lines.next(), lines.next()), (Some("1000"), Some("1000")));
    let mut groups: Vec<u32> = lines.next().unwrap().split(' ').map(|g| g.parse().unwrap()).collect();
    groups.sort_unstable();
    assert_eq!(groups, [1000, 2000, 3000, 4000]);
    let init = kernel_state::status(daemon.pids(&id)[0]);
    assert_eq!(init["Groups"].split(' ').count(), kernel_groups(&client.exec_script(&id, "cat /proc/self/status")));
}

fn kernel_groups(status: &str) -> usize {
    kernel_state::status_lines(status)["Groups"].split(' ').count()
}

#[test]
fn concurrent_commands_do_not_mix_their_output() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.snapshot();
    let socket = daemon.env.socket();
    std::thread::scope(|threads| {
        for worker in 0..4 {
            let (socket, id) = (&socket, &id);
            threads.spawn(move || {
                let client = crate::support::client::Client::connect(socket);
                for round in 0..times(25, 3) {
                    let word = format!("{worker}-{round}");
                    let done = client.exec(id, &["sh", "-c", &format!("echo {word}; echo {word} >&2; exit {worker}")]);
                    assert_eq!(done, Done { code: worker, stdout: format!("{word}\n"), stderr: format!("{word}\n") });
                }
            });
        }
    });
    daemon.wait_until_like(&before);
}

#[test]
fn a_command_of_a_disconnected_client_is_killed_on_timeout() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.pids(&id).len();
    let request =
        v1::ExecSyncRequest { container_id: id.clone(), cmd: vec!["sleep".into(), "1000".into()], timeout: 2 };
    let hung_up = client.call(|mut c| async move {
        let mut request = tonic::Request::new(request);
        request.set_timeout(std::time::Duration::from_millis(500));
        c.exec_sync(request).await
    });
    assert!(hung_up.is_err());
    wait_for("the command to go", seconds(10), || (daemon.pids(&id).len() == before).then_some(()));
}

/// All of them hold their output until they may exit.
#[test]
fn the_total_output_of_one_pods_commands_is_limited_without_effect_on_other_pods() {
    const FLOOD: usize = 4_000_000;
    const GUARANTEED: usize = 16 << 10;
    let daemon = Daemon::on(TestEnv::with_metrics(""));
    let client = daemon.client();
    let (flooding, quiet) = (daemon.run_pod("flooding"), daemon.run_pod("quiet"));
    let (id, other) = (client.run_idle(&flooding, "main"), client.run_idle(&quiet, "main"));
    let before = kernel_state::holding(daemon.pid()).rss;
    let socket = daemon.env.socket();
    let script = format!("head -c {FLOOD} /dev/zero; echo >> /tmp/printed; until [ -e /tmp/go ]; do sleep 0.1; done");
    let commands = 12;
    let outputs: Vec<usize> = std::thread::scope(|threads| {
        let flood: Vec<_> = (0..commands)
            .map(|_| {
                let (socket, id, script) = (&socket, &id, &script);
                threads.spawn(move || {
                    let done = crate::support::client::Client::connect(socket).exec(id, &["sh", "-c", script]);
                    assert_eq!(done.code, 0, "a command with truncated output exits normally");
                    done.stdout.len()
                })
            })
            .collect();
        wait_for("all to have printed", seconds(60), || {
            let lines = client.exec(&id, &["sh", "-c", "wc -l < /tmp/printed"]).stdout;
            (lines.trim() == commands.to_string()).then_some(())
        });
        let probe = client.exec(&other, &["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x"]);
        assert_eq!((probe.code, probe.stdout.len()), (0, 1_000_000));
        let grown = kernel_state::holding(daemon.pid()).rss.saturating_sub(before);
        assert!(grown < 40 << 10, "{grown} KiB more than before");
        client.exec_script(&id, "touch /tmp/go");
        flood.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let all: usize = outputs.iter().sum();
    assert!(all <= (16 << 20) + commands * GUARANTEED, "{outputs:?}");
    assert!(outputs.iter().all(|output| (GUARANTEED..=FLOOD).contains(output)), "{outputs:?}");
    let page = scrape(&daemon.env.metrics());
    let dropped = page.lines().find_map(|line| line.strip_prefix("crisp_exec_bytes_dropped_total ")).unwrap();
    assert_eq!(dropped.parse::<usize>().unwrap(), commands * FLOOD - all);
    // Released budget is available again.
    let again = client.exec(&id, &["sh", "-c", &format!("head -c {FLOOD} /dev/zero")]);
    assert_eq!(again.stdout.len(), FLOOD);
}

#[test]
fn a_command_that_is_too_long_is_refused_by_field() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let long = "x".repeat(200_000);
    let refusal = client.try_exec(&id, &["echo", &long], 5).unwrap_err();
    assert_eq!(refusal.code(), tonic::Code::InvalidArgument, "{refusal:?}");
    assert!(refusal.message().contains("cmd"), "{refusal:?}");
    assert_eq!(client.exec_script(&id, "echo fine"), "fine\n");
}

#[test]
fn a_command_started_as_its_container_exits_is_refused_as_not_running() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    for round in 0..times(25, 3) {
        let id = client.run(&pod, &format!("short-{round}"), &["sleep", "0.1"]);
        let refusal = std::iter::from_fn(|| Some(client.try_exec(&id, &["true"], 0))).find_map(Result::err).unwrap();
        assert!(matches!(refusal.code(), Code::FailedPrecondition | Code::NotFound), "{refusal:?}");
    }
}
