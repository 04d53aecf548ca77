//! Metrics of container exits and OOM kills.

use super::text::{Exposition, Kind};
use crate::runtime::ExitCounts;

pub(super) fn write(text: &mut Exposition, exits: &ExitCounts) {
    let ended = "Exits of containers by reason, in the words of the container's status.";
    let mut family = text.family("crisp_container_exits_total", Kind::Counter, ended);
    for (reason, count) in exits.by_reason() {
        family.sample(&[("reason", reason)], count);
    }
    let killed = "Processes in containers that the kernel killed because of a memory limit.";
    text.family("crisp_oom_kills_total", Kind::Counter, killed).sample(&[], exits.oom_kills());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_sample_from_the_start() {
        let mut text = Exposition::default();
        write(&mut text, &ExitCounts::default());
        let text = String::from(text);
        for reason in ["Completed", "Error", "OOMKilled", "ShimLost", "StartError"] {
            assert!(text.contains(&format!("\ncrisp_container_exits_total{{reason=\"{reason}\"}} 0\n")), "{text}");
        }
        assert!(text.contains("\ncrisp_oom_kills_total 0\n"), "{text}");
    }
}
