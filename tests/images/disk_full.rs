//! An image store on a disk that is too small.

use std::ffi::CString;

use rustix::mount::{MountFlags, mount};
use tonic::Code;

use crate::support::env::TestEnv;
use crate::support::harness::Daemon;
use crate::support::image_fixture::{Archive, BOX};
use crate::support::layer_fixture::Layer;
use crate::support::registry_fixture::Registry;

/// Creates an environment with its images on a separate small file system.
fn on_small_disk(options: &str) -> TestEnv {
    let env = TestEnv::new();
    let (disk, images) = (env.dir().join("disk"), env.root().join("images"));
    std::fs::create_dir(&disk).unwrap();
    let options = CString::new(format!("mode=0700,{options}")).unwrap();
    mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), Some(options.as_c_str())).unwrap();
    std::fs::remove_dir_all(&images).unwrap();
    std::os::unix::fs::symlink(&disk, &images).unwrap();
    env.import(&Archive::new(BOX));
    env
}

/// Checks that images that do not fit are refused with a clear error, and that the store and
/// containers still work.
fn layers_larger_than_the_disk_are_rejected(options: &str, too_much: &[Layer]) {
    let registry = Registry::start();
    registry.push(&Archive::new("x").on_top(Layer::noise("noise", 1 << 20, 15)), "small", "1");
    let daemon = Daemon::on(on_small_disk(options));
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let running = client.run_idle(&pod, "main");
    for (number, layer) in too_much.iter().enumerate() {
        let name = format!("large-{number}");
        registry.push(&Archive::new("x").on_top(layer.clone()), &name, "1");
        let refusal = client.pull(&format!("{}/{name}:1", registry.host())).unwrap_err();
        assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
        assert!(refusal.message().to_lowercase().contains("no space left"), "{refusal:?}");
        daemon.check_nothing_left();
    }
    let small = format!("{}/small:1", registry.host());
    client.pull(&small).unwrap();
    assert_eq!(daemon.print_in(&small, "wc -c < /noise"), "1048576\n");
    assert_eq!(client.exec_script(&running, "cat /etc/passwd | wc -l"), "2\n");
    client.remove_image(&small).unwrap();
    daemon.check_nothing_left();
    assert_eq!(daemon.print_in(BOX, "echo fine"), "fine\n");
}

#[test]
fn an_image_too_large_for_the_disk_is_refused_and_the_store_stays_usable() {
    // A large blob, and one that becomes large when decompressed.
    let large = Layer::new(|tar| tar.file("large", 0o644, &b"large ".repeat(5 << 20)));
    let bomb = Layer::new(|tar| (0..100).for_each(|number| tar.file(&format!("{number}"), 0o644, &vec![0; 2 << 20])));
    layers_larger_than_the_disk_are_rejected("size=24m", &[large, bomb]);
}

#[test]
fn an_image_with_too_many_files_for_the_disk_is_refused_and_the_store_stays_usable() {
    let many = Layer::new(|tar| (0..2000).for_each(|number| tar.file(&format!("{number}"), 0o644, b"x")));
    layers_larger_than_the_disk_are_rejected("size=24m,nr_inodes=1000", &[many]);
}
