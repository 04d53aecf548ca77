//! Container logs: format, long lines, rate limit, reopening, full disks.

use std::fs;
use std::time::{Duration, Instant};

use cri_api::v1;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tonic::Code;

use crate::support::client::{container, log_lines, text_of};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, pause, scrape, seconds, times, wait_for};
use crate::support::kernel_state;

#[test]
fn lines_have_a_time_a_stream_and_a_tag() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let ended = daemon.client().script(&pod, "main", "echo out; sleep 0.1; echo err >&2; sleep 0.1; printf 'no end'");
    let lines = log_lines(&ended.status.log_path);
    let short: Vec<_> = lines.iter().map(|l| format!("{} {} {}", l.stream, l.tag, l.text)).collect();
    assert_eq!(short[..2], ["stdout F out", "stderr F err"]);
    assert_eq!(short[2..], ["stdout P no end"], "a line without a newline is partial");
    let mut times: Vec<_> = lines.iter().map(|l| l.time.clone()).collect();
    for time in &times {
        // Such as 2026-11-16T10:00:00.000000001Z.
        let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000000000Z");
    }
    let before = times.clone();
    times.sort();
    assert_eq!(times, before);
}

#[test]
fn a_line_that_is_too_long_is_split() {
    let daemon = Daemon::with_settings("[container]\nlog_line_max = 1000\n");
    let pod = daemon.run_pod("pod");
    let script = "head -c 2500 /dev/zero | tr '\\0' x; echo; head -c 1000 /dev/zero | tr '\\0' y; echo; echo end";
    let ended = daemon.client().script(&pod, "main", script);
    let lines = log_lines(&ended.status.log_path);
    let shape: Vec<_> = lines.iter().map(|l| (l.tag.as_str(), l.text.len())).collect();
    assert_eq!(shape, [("P", 1000), ("P", 1000), ("F", 500), ("F", 1000), ("F", 3)]);
    assert_eq!(ended.stdout, format!("{}\n{}\nend\n", "x".repeat(2500), "y".repeat(1000)));
}

#[test]
fn an_unfinished_line_is_logged_at_the_exit() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(&pod, "main", &["sh", "-c", "echo up; printf unfinished; exec sleep 1000"]);
    client.wait_printed(&id, "up");
    client.stop(&id, 0).unwrap();
    assert_eq!(client.lines(&id).last().unwrap().text, "unfinished");
}

#[test]
fn output_at_full_speed_is_logged_completely() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    // Lines of 100 bytes, 50 MB of them.
    let count = times(500_000, 20_000);
    let line = "0123456789".repeat(10);
    let script = format!("yes {} | head -n {count}", &line[1..]);
    let ended = daemon.client().script(&pod, "main", &script);
    assert_eq!(ended.status.exit_code, 0);
    assert_eq!(ended.stdout.len(), count * 100);
    assert!(ended.stdout.lines().all(|l| l == &line[1..]));
}

#[test]
fn a_container_over_its_log_rate_waits_and_loses_nothing() {
    const MIB: u64 = 1 << 20;
    let daemon = Daemon::with_settings("[container]\nlog_rate_max = 1048576\n");
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let (count, line) = (70_000, "0123456789".repeat(10));
    let begin = Instant::now();
    let id = client.run(&pod, "flood", &["sh", "-c", &format!("yes {} | head -n {count}", &line[1..])]);
    let log = client.status(&id).log_path;
    assert_eq!(client.script(&pod, "other", "echo quick").stdout, "quick\n", "the other container does not wait");
    while client.status(&id).state() == v1::ContainerState::ContainerRunning {
        // The bytes written before the time was read.
        let written = fs::metadata(&log).unwrap().len();
        let most = 4 * MIB + MIB * (begin.elapsed().as_secs() + 1) + MIB;
        assert!(written <= most, "{written} bytes after {:?}", begin.elapsed());
        assert!(begin.elapsed() < seconds(60));
        pause();
    }
    assert!(begin.elapsed() > Duration::from_secs(4), "{:?}", begin.elapsed());
    let printed = text_of(&log_lines(&log), "stdout");
    assert_eq!(printed.len(), count * 100);
    assert!(printed.lines().all(|printed| printed == &line[1..]));
}

/// An empty line is one byte to print, and forty to log.
#[test]
fn the_shim_of_a_container_over_its_log_rate_is_idle_and_stops_it_at_once() {
    let daemon = Daemon::with_settings("[container]\nlog_rate_max = 1048576\n");
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(&pod, "flood", &["yes", ""]);
    let log = client.status(&id).log_path;
    let written = || fs::metadata(&log).unwrap().len();
    wait_for("the burst to be over", seconds(20), || (written() > 4 << 20).then_some(()));
    let shim = daemon.shims()[0];
    let (used, had, begin) = (kernel_state::processor_time(shim), written(), Instant::now());
    std::thread::sleep(seconds(3));
    let used = kernel_state::processor_time(shim) - used;
    assert!(used < begin.elapsed() / 4, "{used:?} of {:?}", begin.elapsed());
    // A single read is at most 128 KiB.
    assert!(written() - had < (begin.elapsed().as_secs() + 1 + 6) << 20, "{} bytes", written() - had);
    let begin = Instant::now();
    client.stop(&id, 0).unwrap();
    assert!(begin.elapsed() < seconds(3), "{:?}", begin.elapsed());
    assert_eq!(client.wait_exited(&id).exit_code, 137);
}

#[test]
fn a_reopened_log_continues_in_a_new_file_without_a_gap() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let script = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo $i; done; echo half; read x < /tmp/go; \
                  while [ $i -lt 4000 ]; do i=$((i+1)); echo $i; done";
    let id = client.run(&pod, "main", &["sh", "-c", &format!("busybox mkfifo /tmp/go; {script}")]);
    client.wait_printed(&id, "half");
    let log = client.status(&id).log_path;
    let old = format!("{log}.1");
    fs::rename(&log, &old).unwrap();
    client.reopen_log(&id).unwrap();
    assert!(fs::metadata(&log).is_ok(), "a new log is begun at once");
    client.exec_script(&id, "echo > /tmp/go");
    client.wait_exited(&id);
    let (first, second) = (text_of(&log_lines(&old), "stdout"), text_of(&log_lines(&log), "stdout"));
    let numbers: Vec<u32> =
        first.lines().chain(second.lines()).filter(|l| *l != "half").map(|l| l.parse().unwrap()).collect();
    assert_eq!(numbers, (1..=4000).collect::<Vec<_>>());
    assert!(!second.is_empty());
}

#[test]
fn logs_reopened_while_a_container_prints_lose_nothing() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let count = times(20_000, 1000);
    let id =
        client.run(&pod, "main", &["sh", "-c", &format!("seq 1 {count}; sleep 0.2; seq {} {}", count + 1, 2 * count)]);
    let log = client.status(&id).log_path;
    let mut parts = Vec::new();
    for n in 0..5 {
        let old = format!("{log}.{n}");
        if fs::rename(&log, &old).is_ok() {
            parts.push(old);
        }
        // An exited container has nothing to reopen.
        if client.reopen_log(&id).is_err() {
            break;
        }
    }
    client.wait_exited(&id);
    parts.push(log);
    let text: String = parts.iter().map(|part| text_of(&log_lines(part), "stdout")).collect();
    let numbers: Vec<usize> = text.lines().map(|l| l.parse().unwrap()).collect();
    assert_eq!(numbers, (1..=2 * count).collect::<Vec<_>>());
}

#[test]
fn reopening_a_log_requires_a_running_container() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    client.stop(&id, 5).unwrap();
    let refusal = client.reopen_log(&id).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
}

#[test]
fn a_log_cannot_leave_the_pods_directory() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let logs = daemon.env.logs().join("pod");
    let outside = daemon.env.dir().join("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, logs.join("link")).unwrap();
    std::os::unix::fs::symlink(outside.join("file"), logs.join("file.log")).unwrap();
    for path in ["../outside/a.log", "x/../../outside/a.log", "/tmp/a.log", "link/a.log", "file.log"] {
        let mut config = container("main", &["echo", "x"]);
        config.log_path = path.to_owned();
        let refusal = client.try_create(&pod, config).unwrap_err();
        assert!(matches!(refusal.code(), Code::InvalidArgument | Code::FailedPrecondition), "{path}: {refusal:?}");
        assert!(refusal.message().contains("log_path"), "{path}: {refusal:?}");
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn an_absent_log_directory_is_named() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mut config = daemon.pod_config("pod");
    config.log_directory = daemon.env.dir().join("absent").display().to_string();
    let refusal = match client.try_run_pod(config.clone()) {
        Err(refusal) => refusal,
        Ok(id) => {
            let pod = crate::support::client::Pod { id, config };
            client.try_create(&pod, container("main", &["true"])).unwrap_err()
        }
    };
    assert!(matches!(refusal.code(), Code::InvalidArgument | Code::FailedPrecondition), "{refusal:?}");
    assert!(refusal.message().contains("log_directory") && refusal.message().contains("absent"), "{refusal:?}");
}

#[test]
fn a_container_without_a_log_path_is_not_logged() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["sh", "-c", "seq 1 100000; exit 3"]);
    config.log_path = String::new();
    let ended = client.finish_config(&pod, config);
    assert_eq!((ended.status.exit_code, ended.status.log_path.as_str()), (3, ""));
    assert_eq!(fs::read_dir(daemon.env.logs().join("pod")).unwrap().count(), 0);
}

#[test]
fn the_directory_of_a_log_is_created() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["echo", "deep"]);
    // As the kubelet names them.
    config.log_path = "main/0.log".to_owned();
    fs::create_dir(daemon.env.logs().join("pod/main")).unwrap();
    assert_eq!(daemon.client().finish_config(&pod, config).stdout, "deep\n");
}

#[test]
fn a_terminal_is_logged_as_stdout() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["sh", "-c", "test -t 0 && test -t 1 && echo tty; echo err >&2"]);
    config.tty = true;
    let ended = daemon.client().finish_config(&pod, config);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("tty\r\nerr\r\n", ""));
}

#[test]
fn a_child_that_keeps_the_pipe_does_not_hold_up_the_exit() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(&pod, "main", &["sh", "-c", "(sleep 1000 &); echo done; exit 4"]);
    let status = wait_for("the exit", seconds(10), || Some(client.status(&id)).filter(|status| status.finished_at > 0));
    assert_eq!(status.exit_code, 4);
    assert_eq!(client.lines(&id).last().unwrap().text, "done");
}

#[test]
fn bytes_that_are_not_utf8_are_logged_unchanged() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // All byte values except the one that ends a line.
    let script =
        "i=0; while [ $i -lt 256 ]; do [ $i -ne 10 ] && printf \"\\\\$(printf %o $i)\"; i=$((i+1)); done; echo";
    let id = client.run(&pod, "main", &["sh", "-c", script]);
    client.wait_exited(&id);
    let log = fs::read(client.status(&id).log_path).unwrap();
    let wanted: Vec<u8> = (0..=255).filter(|byte| *byte != b'\n').chain([b'\n']).collect();
    let at = log.windows(10).position(|words| words == b" stdout F ").unwrap() + 10;
    assert_eq!(log[at..], wanted);
}

#[test]
fn output_lost_on_a_full_disk_is_counted_and_reported_and_the_container_runs() {
    let daemon = Daemon::on(TestEnv::with_metrics(""));
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let logs = daemon.env.logs().join("pod");
    mount("crisp-test", &logs, "tmpfs", MountFlags::empty(), Some(c"size=1m")).unwrap();
    fs::write(logs.join("other"), vec![0; 900 << 10]).unwrap();
    let script = "seq 1 10000; touch /tmp/printed; read x < /tmp/go; echo after; exit 5";
    let id = client.run(&pod, "main", &["sh", "-c", &format!("busybox mkfifo /tmp/go; {script}")]);
    wait_for("all to be printed", seconds(20), || (client.exec(&id, &["ls", "/tmp/printed"]).code == 0).then_some(()));
    let log = wait_for("the loss to be reported", seconds(20), || {
        Some(daemon.env.read_log())
            .filter(|log| log.contains("container output is lost: cannot write the container's log file"))
    });
    assert!(log.contains("No space left on device") && log.contains("bytes="), "{log}");
    let page = scrape(&daemon.env.metrics());
    let lost = page.lines().find_map(|line| line.strip_prefix("crisp_log_bytes_lost_total ")).unwrap();
    assert!(lost.parse::<u64>().unwrap() > 0, "{page}");
    // When the disk has room again, logging continues on a new line. There is room for all that the
    // pipe may still hold.
    fs::remove_file(logs.join("other")).unwrap();
    client.exec_script(&id, "echo > /tmp/go");
    client.wait_exited(&id);
    assert_eq!(client.status(&id).exit_code, 5, "it never noticed");
    let log = fs::read_to_string(client.status(&id).log_path).unwrap();
    assert!(log.lines().last().unwrap().ends_with("Z stdout F after"), "{}", &log[log.len() - 200..]);
    let stated = log.lines().rev().find(|line| line.contains(" stdout F crisp: ")).unwrap();
    assert!(stated.ends_with("No space left on device (os error 28)"), "{stated}");
    let cut = log.lines().filter(|line| !line.contains(" stdout F ")).count();
    assert!(cut <= 1, "only one entry was cut short, not {cut}");
    client.remove_pod(&pod.id).unwrap();
    unmount(&logs, UnmountFlags::DETACH).unwrap();
}

#[test]
fn logs_reopened_at_full_speed_neither_lose_nor_repeat_a_line() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let count = times(1_000_000, 20_000);
    let id = client.run(&pod, "main", &["seq", "1", &count.to_string()]);
    let log = client.status(&id).log_path;
    let mut parts = Vec::new();
    loop {
        let old = format!("{log}.{}", parts.len());
        fs::rename(&log, &old).unwrap();
        parts.push(old);
        if client.reopen_log(&id).is_err() {
            break;
        }
    }
    client.wait_exited(&id);
    if fs::metadata(&log).is_ok() {
        parts.push(log);
    }
    let mut next = 1;
    for part in &parts {
        for line in log_lines(part) {
            assert_eq!((line.tag.as_str(), line.text.parse()), ("F", Ok(next)));
            next += 1;
        }
    }
    assert_eq!(next, count + 1, "in {} parts", parts.len());
    assert!(parts.len() > 2, "{}", parts.len());
}

#[test]
fn the_memory_of_a_shim_does_not_grow_with_the_output() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    client.run_idle(&pod, "idle");
    let shim = daemon.shims()[0];
    let before = kernel_state::holding(shim).anonymous;
    let size = times(20_000_000, 2_000_000);
    // No line at all, the shortest lines there are, noise, and two streams at once.
    let script = format!(
        "head -c {size} /dev/zero; yes '' | head -c {size} >&2; head -c {size} /dev/urandom; \
         head -c {size} /dev/zero & head -c {size} /dev/urandom >&2; wait; exit 8"
    );
    let id = client.run(&pod, "main", &["sh", "-c", &script]);
    let mut most = 0;
    let status = wait_for("the container to exit", seconds(120), || {
        most = most.max(kernel_state::holding(shim).anonymous);
        Some(client.status(&id)).filter(|status| status.finished_at > 0)
    });
    assert_eq!(status.exit_code, 8);
    assert!(most < before + 1024, "{before} KiB, then {most} KiB");
}
