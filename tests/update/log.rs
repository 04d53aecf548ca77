//! The log line of a resize.

use std::time::Duration;

use super::memory::holding;
use super::*;

/// The lines with this message, of resizes of `id`.
fn lines(daemon: &Daemon, message: &str, id: &str) -> Vec<String> {
    let (message, id) = (format!(": {message} kind="), format!(" id=\"{id}\""));
    let is_one = |line: &&str| line.contains(&message) && line.contains(&id);
    daemon.env.read_log().lines().filter(is_one).map(str::to_owned).collect()
}

fn own_name() -> String {
    let comm = fs::read_to_string("/proc/self/comm").unwrap();
    format!("{}[{}]", comm.trim_end(), std::process::id())
}

#[test]
fn a_resize_is_logged_with_old_and_new_values_caller_and_duration() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", limits(250, 64));
    client.update(&id, limits(500, 256)).unwrap();
    client.update(&id, limits(500, 256)).unwrap();
    let [line] = &lines(&daemon, "resized", &id)[..] else { panic!("{}", daemon.env.read_log()) };
    for part in ["INFO", "memory=\"64Mi→256Mi\"", "cpu=\"250m→500m\"", "kind=\"container\"", "name=\"main\""] {
        assert!(line.contains(part), "{part} in {line}");
    }
    assert!(line.contains(&format!("caller={}", own_name())), "{line}");
    let duration = line.split("duration_us=").nth(1).unwrap().split(' ').next().unwrap();
    assert!(Duration::from_micros(duration.parse().unwrap()) < Duration::from_secs(60), "{line}");
}

#[test]
fn a_refused_resize_is_logged_with_its_values_and_one_error() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = holding(&daemon, &pod, "main", 24, 256);
    client.update(&id, limits(1000, 12)).unwrap_err();
    let [line] = &lines(&daemon, "not resized", &id)[..] else { panic!("{}", daemon.env.read_log()) };
    for part in ["INFO", "memory=\"256Mi→12Mi\"", "outcome=\"refused\"", "reason=\"below_usage\""] {
        assert!(line.contains(part), "{part} in {line}");
    }
    let log = daemon.env.read_log();
    assert_eq!(log.lines().filter(|line| line.contains("below current usage")).count(), 1, "{log}");
    // The shrink that fits reports what it made the kernel take back.
    client.update(&id, limits(1000, 128)).unwrap();
    let [line] = &lines(&daemon, "resized", &id)[..] else { panic!("{}", daemon.env.read_log()) };
    assert!(line.contains("memory=\"256Mi→128Mi\"") && line.contains("reclaimed_bytes="), "{line}");
}

#[test]
fn a_resize_that_a_killed_daemon_began_is_logged_by_the_next_one_with_its_caller() {
    for (point, message, reason) in
        [("resize.journal", "not resized", "rolled_back"), ("resize.recorded", "resized", "recovery")]
    {
        let mut daemon = Daemon::with_failpoints(crate::support::env::TestEnv::new(), &format!("{point}=kill"));
        let pod = daemon.run_pod("pod");
        let id = daemon.client().run_limited(&pod, "main", limits(500, 64));
        daemon.client().update(&id, limits(700, 128)).unwrap_err();
        daemon.wait_ended();
        daemon.revive();
        let [line] = &lines(&daemon, message, &id)[..] else { panic!("{}", daemon.env.read_log()) };
        assert!(line.contains("memory=\"64Mi→128Mi\"") && line.contains(&format!("\"{reason}\"")), "{line}");
        assert!(line.contains(&format!("caller={}", own_name())), "{line}");
    }
}
