//! Metrics of pods, containers, shims and event clients.

use super::text::{Exposition, Kind};
use crate::runtime::Counts;

pub(super) fn write(text: &mut Exposition, population: &Counts) {
    let Counts { ready, not_ready, created, running, exited, shims, listeners, log_bytes_lost, exec_bytes_dropped } =
        population;
    let mut pods = text.family("crisp_pods", Kind::Gauge, "Pods that crisp manages, by state.");
    pods.sample(&[("state", "ready")], ready);
    pods.sample(&[("state", "not_ready")], not_ready);
    let mut containers = text.family("crisp_containers", Kind::Gauge, "Containers that crisp manages, by state.");
    for (state, count) in [("created", created), ("running", running), ("exited", exited)] {
        containers.sample(&[("state", state)], count);
    }
    text.family("crisp_shims", Kind::Gauge, "Pods whose shim process the daemon is connected to.").sample(&[], shims);
    let listening = "Clients subscribed to container events (GetContainerEvents).";
    text.family("crisp_event_listeners", Kind::Gauge, listening).sample(&[], listeners);
    let lost = "Bytes of container output that crisp could not write to log files; they are lost.";
    text.family("crisp_log_bytes_lost_total", Kind::Counter, lost).sample(&[], log_bytes_lost);
    let dropped = "Bytes of ExecSync output dropped because of container.exec_output_total.";
    text.family("crisp_exec_bytes_dropped_total", Kind::Counter, dropped).sample(&[], exec_bytes_dropped);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_one_sample() {
        let population = Counts {
            ready: 1,
            not_ready: 2,
            created: 3,
            running: 4,
            exited: 5,
            shims: 7,
            listeners: 8,
            log_bytes_lost: 9,
            exec_bytes_dropped: 10,
        };
        let mut text = Exposition::default();
        write(&mut text, &population);
        let text = String::from(text);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "crisp_pods{state=\"ready\"} 1",
                "crisp_pods{state=\"not_ready\"} 2",
                "crisp_containers{state=\"created\"} 3",
                "crisp_containers{state=\"running\"} 4",
                "crisp_containers{state=\"exited\"} 5",
                "crisp_shims 7",
                "crisp_event_listeners 8",
                "crisp_log_bytes_lost_total 9",
                "crisp_exec_bytes_dropped_total 10",
            ]
        );
    }
}
