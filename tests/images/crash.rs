//! The daemon is killed while images are added and removed: each restart finds the old state or the
//! new one.

use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use crate::support::client::Client;
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, times};
use crate::support::image_fixture::{Archive, BOX};
use crate::support::layer_fixture::{Layer, Random, noise};
use crate::support::registry_fixture::Registry;
pub(crate) use crate::support::registry_proxy::{Act, Proxy, Way};

const SEED: u64 = 20_240_229;
const LAYERS: u64 = 5;
const SIZE: usize = 100_000;

/// An image of several layers with files of known content.
fn archive() -> Archive {
    let layer = |number: u64| Layer::noise(&format!("data/{number}"), SIZE, number);
    (0..LAYERS).fold(Archive::new("crisp.test/crash:1"), |archive, number| archive.on_top(layer(number)))
}

/// Checks that the image is complete and usable, or not in the store; returns whether it is there.
fn check(daemon: &Daemon, image: &str) -> bool {
    let there = daemon.client().image(image).is_some();
    daemon.check_store(1 + if there { usize::try_from(LAYERS).unwrap() } else { 0 });
    if there {
        let content: Vec<u8> = (0..LAYERS).flat_map(|number| noise(SIZE, number)).collect();
        let sum: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(daemon.print_in(image, "cat /data/* | busybox sha256sum"), format!("{sum}  -\n"));
    }
    assert_eq!(daemon.client().images().len(), 1 + usize::from(there));
    there
}

/// Waits for a random time up to a little more than `usual`.
fn wait_a_moment(random: &mut Random, usual: Duration) {
    let moment = usual.mul_f64(f64::from(u32::try_from(random.below(1150)).unwrap()) / 1000.0);
    eprintln!("killed after {moment:?}");
    std::thread::sleep(moment);
}

#[test]
fn a_daemon_killed_at_any_time_during_a_pull_leaves_no_partial_image() {
    let registry = Registry::start();
    registry.push(&archive(), "crash", "1");
    // Three layers are downloaded at a time, 100 kB each: about 300 ms for all.
    let proxy = Proxy::before(&registry, |request| {
        Act::Pass(if request.is_blob() { Way::Slow(10_000, Duration::from_millis(12)) } else { Way::Whole })
    });
    let image = format!("{}/crash:1", proxy.host());
    let mut daemon = Daemon::start();
    let begin = Instant::now();
    let id = daemon.client().pull(&image).unwrap();
    let usual = begin.elapsed();
    daemon.client().remove_image(&id).unwrap();
    eprintln!("seed {SEED}, a pull takes {usual:?}");

    let mut random = Random::new(SEED);
    let mut whole = 0;
    for _ in 0..times(50, 5) {
        let socket = daemon.env.socket();
        std::thread::scope(|threads| {
            // The daemon is killed before it answers.
            threads.spawn(|| Client::connect(&socket).pull(&image).ok());
            wait_a_moment(&mut random, usual);
            daemon.kill9();
        });
        daemon.revive();
        if check(&daemon, &image) {
            whole += 1;
            daemon.client().remove_image(&image).unwrap();
        }
    }
    eprintln!("{whole} of the pulls were complete");
    daemon.client().pull(&image).unwrap();
    assert!(check(&daemon, &image));
}

#[test]
fn a_daemon_killed_while_removing_an_image_leaves_all_of_it_or_nothing() {
    let registry = Registry::start();
    registry.push(&archive(), "crash", "1");
    let image = format!("{}/crash:1", registry.host());
    let mut daemon = Daemon::start();
    daemon.client().pull(&image).unwrap();
    let begin = Instant::now();
    daemon.client().remove_image(&image).unwrap();
    let usual = begin.elapsed();
    eprintln!("seed {SEED}, a removal takes {usual:?}");
    let mut random = Random::new(SEED);
    for _ in 0..times(10, 2) {
        daemon.client().pull(&image).unwrap();
        let socket = daemon.env.socket();
        std::thread::scope(|threads| {
            threads.spawn(|| Client::connect(&socket).remove_image(&image).ok());
            wait_a_moment(&mut random, usual);
            daemon.kill9();
        });
        daemon.revive();
        check(&daemon, &image);
    }
    daemon.client().remove_image(&image).unwrap();
    daemon.check_nothing_left();
}

#[test]
fn an_import_killed_at_any_time_can_be_repeated() {
    let env = TestEnv::new();
    let layout = env.dir().join("layout");
    std::fs::create_dir(&layout).unwrap();
    archive().write_layout(&layout);
    let import = |env: &TestEnv| {
        let mut command = env.crisp(&["image", "import", "--config"]);
        command.arg(env.config()).arg(&layout).stdout(std::process::Stdio::null());
        command.spawn().unwrap()
    };
    let begin = Instant::now();
    assert!(import(&TestEnv::new()).wait().unwrap().success());
    let usual = begin.elapsed();
    eprintln!("seed {SEED}, an import takes {usual:?}");
    let mut random = Random::new(SEED);
    let mut daemon = Daemon::on(env);
    for _ in 0..times(8, 2) {
        daemon.kill9();
        let mut process = import(&daemon.env);
        wait_a_moment(&mut random, usual);
        process.kill().unwrap();
        process.wait().unwrap();
        daemon.revive();
        if check(&daemon, "crisp.test/crash:1") {
            daemon.client().remove_image("crisp.test/crash:1").unwrap();
        }
    }
    daemon.kill9();
    assert!(import(&daemon.env).wait().unwrap().success());
    daemon.revive();
    assert!(check(&daemon, "crisp.test/crash:1"));
    assert_eq!(daemon.print_in(BOX, "echo fine"), "fine\n");
}
