//! Measures attach and detach: `cargo test -p net -- --include-ignored --nocapture
//! few_milliseconds`.

use std::time::{Duration, Instant};

use model::Protocol;

use super::support::*;

/// A limit that also holds on a loaded machine.
const ATTACH: Duration = Duration::from_millis(50);
const DETACH: Duration = Duration::from_millis(20);

#[test]
#[ignore = "needs root"]
fn attaching_and_detaching_take_a_few_milliseconds_at_most() {
    on_host(|_| {
        for (what, pools, ports) in [
            ("IPv4", &["10.213.0.0/16"][..], vec![]),
            ("IPv4, a host port", &["10.213.0.0/16"], vec![port(Protocol::Tcp, "", 8080, 80)]),
            ("two families", &["10.213.0.0/16", "fd00:c715::/64"], vec![]),
        ] {
            let bridge = bridge(pools);
            bridge.set_up().unwrap();
            let (mut attached, mut detached, mut gone) = (Vec::new(), Vec::new(), Vec::new());
            for number in 0..50 {
                let netns = Netns::new();
                let pod = pod(number, &netns, &ports);
                let begin = Instant::now();
                let ips = bridge.reserve(&pod.id).unwrap();
                bridge.attach(&pod, &ips).unwrap();
                attached.push(begin.elapsed());
                let begin = Instant::now();
                let removal = bridge.detach(&pod.id).unwrap();
                detached.push(begin.elapsed());
                removal.wait();
                gone.push(begin.elapsed());
            }
            let [attached, detached, gone] = [attached, detached, gone].map(median);
            eprintln!("{what}: attach {attached:?}, detach {detached:?}, interface gone after {gone:?}");
            assert!(attached < ATTACH * slowness(), "{attached:?}");
            assert!(detached < DETACH * slowness(), "{detached:?}");
        }
    });
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
