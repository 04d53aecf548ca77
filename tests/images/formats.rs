//! All image formats, and the files of layers in a container.

use serde_json::json;

use crate::support::client::security;
use crate::support::harness::Daemon;
use crate::support::image_fixture::{Archive, MANIFEST, architecture};
pub(crate) use crate::support::layer_fixture::{CHANGED, Layer, Packing};
use crate::support::registry_fixture::{DOCKER_LIST, INDEX, Registry};
use crate::support::registry_proxy::Proxy;

fn file(name: &str, text: &str) -> Layer {
    Layer::new(|tar| tar.file(name, 0o644, text.as_bytes()))
}

/// Returns an image whose `/which` has this text.
fn which(text: &str) -> Archive {
    Archive::new("x").on_top(file("which", &format!("{text}\n")))
}

const WHICH: &str = "cat /which";

#[test]
fn the_platform_of_this_machine_is_chosen_from_an_index() {
    let registry = Registry::start();
    let (ours, foreign) = (which("ours").pieces(), which("foreign").for_architecture("s390x").pieces());
    for pieces in [&ours, &foreign] {
        registry.push_pieces(pieces, "box", &pieces.manifest.digest);
    }
    let here = architecture();
    let entries = [(MANIFEST, &foreign.manifest, "s390x"), (MANIFEST, &ours.manifest, here)];
    let index = registry.push_index(INDEX, &entries, "box", "index");
    registry.push_index(INDEX, &[(INDEX, &index, here)], "box", "nested");
    registry.push_index(INDEX, &entries[..1], "box", "foreign");

    let docker = which("docker").in_docker_words().pieces();
    registry.push_pieces(&docker, "box", &docker.manifest.digest);
    registry.push_index(DOCKER_LIST, &[(docker.kind, &docker.manifest, here)], "box", "list");

    let daemon = Daemon::start();
    let client = daemon.client();
    for (tag, words) in [("index", "ours"), ("nested", "ours"), ("list", "docker")] {
        let image = format!("{}/box:{tag}", registry.host());
        client.pull(&image).unwrap();
        assert_eq!(daemon.print_in(&image, WHICH), format!("{words}\n"), "{tag}");
    }
    // The digest of the index was requested, so the image can be pinned by it.
    let image = client.image(&format!("{}/box:index", registry.host())).unwrap();
    assert!(image.repo_digests.iter().any(|name| name.ends_with(&index.digest)), "{image:?}");
    let by_digest = format!("{}/box@{}", registry.host(), index.digest);
    assert_eq!(client.pull(&by_digest).unwrap(), image.id);
    let refusal = client.pull(&format!("{}/box:foreign", registry.host())).unwrap_err();
    assert_eq!(refusal.code(), tonic::Code::NotFound, "{refusal:?}");
    assert!(refusal.message().contains("s390x") && refusal.message().contains(here), "{refusal:?}");
}

#[test]
fn layers_are_unpacked_with_every_compression() {
    let registry = Registry::start();
    let packings = [Packing::Plain, Packing::Gzip, Packing::Members, Packing::Zstd];
    let mut mixed = Archive::new("x").on_top(Layer::new(|_| ()));
    for (number, packing) in packings.into_iter().enumerate() {
        let layer = Layer::new(|tar| {
            tar.file(&format!("part-{number}"), 0o644, format!("{number}\n").as_bytes());
            tar.file("overwritten", 0o644, format!("by {number}\n").as_bytes());
        });
        mixed = mixed.on_top(layer.packed(packing));
    }
    registry.push(&mixed, "mixed", "1");
    registry.push(&mixed.clone().in_docker_words(), "mixed", "docker");
    let daemon = Daemon::start();
    for tag in ["1", "docker"] {
        let image = format!("{}/mixed:{tag}", registry.host());
        daemon.client().pull(&image).unwrap();
        let printed = daemon.print_in(&image, "cat /part-* /overwritten");
        assert_eq!(printed, "0\n1\n2\n3\nby 3\n", "{tag}");
    }
    daemon.check_store(6);
}

#[test]
fn many_layers_and_repeated_layers_are_merged() {
    let registry = Registry::start();
    let mut many = Archive::new("x");
    for number in 0..120 {
        many = many.on_top(file(&format!("many/{number}"), "x").packed(Packing::Plain));
    }
    // Pushing that many layers to a real registry takes too long.
    let shelf = Proxy::of(many.pieces());
    // The file exists, then it is hidden, then it exists again.
    let (again, hides) = (file("dir/again", "again\n"), file("dir/.wh.again", ""));
    let twice = Archive::new("x").on_top(again.clone()).on_top(hides.clone()).on_top(again).on_top(hides.clone());
    registry.push(&twice.on_top(file("dir/other", "other\n")), "twice", "1");
    let daemon = Daemon::start();
    let many = format!("{}/many:1", shelf.host());
    daemon.client().pull(&many).unwrap();
    assert_eq!(daemon.print_in(&many, "ls /many | wc -l"), "120\n");
    let twice = format!("{}/twice:1", registry.host());
    daemon.client().pull(&twice).unwrap();
    assert_eq!(daemon.print_in(&twice, "ls /dir"), "other\n");
    daemon.check_store(126);
}

/// `security.capability` with `CAP_NET_BIND_SERVICE`, permitted and effective.
const CAN_BIND: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn files_have_the_owners_times_links_holes_and_modes_of_the_layer() {
    let registry = Registry::start();
    let busybox = std::fs::read("/bin/busybox").unwrap();
    let below = Layer::new(|tar| {
        tar.dir("kept", 0o2751);
        tar.file("kept/below", 0o644, b"below\n");
        tar.dir("emptied", 0o755);
        tar.file("emptied/old", 0o644, b"old\n");
        tar.file("gone", 0o644, b"gone\n");
    });
    let above = Layer::new(|tar| {
        tar.owned_file("owned", (12345, 54321), 1_234_567_890, b"owned\n");
        tar.hard_link("linked", "owned");
        tar.sparse("sparse", 50 << 20, 40 << 20, &b"far away\n".repeat(512)[..4096]);
        tar.dir("emptied", 0o755);
        tar.file("emptied/.wh..wh..opq", 0o644, b"");
        tar.file("emptied/new", 0o644, b"new\n");
        tar.file(".wh.gone", 0o644, b"");
        // The directory is not listed here: it has the metadata of the layer below.
        tar.file("kept/above", 0o644, b"above\n");
        tar.xattr("security.capability", &CAN_BIND);
        tar.file("bin/busybox-capable", 0o755, &busybox);
        tar.symlink("pointer", "/owned");
    });
    registry.push(&Archive::new("x").on_top(below).on_top(above), "box", "1");
    let daemon = Daemon::start();
    let image = format!("{}/box:1", registry.host());
    daemon.client().pull(&image).unwrap();
    let printed = daemon.print_in(
        &image,
        "stat -c '%u %g %a %Y %h' /owned; [ /owned -ef /linked ] && echo linked
         stat -c '%s' /sparse; [ $(stat -c %b /sparse) -lt 2000 ] && echo holes; dd if=/sparse bs=9 count=1 \
         skip=$((40 * 1024 * 1024)) iflag=skip_bytes 2> /dev/null; head -c 4 /sparse | busybox od -An -tx1
         ls /emptied /kept; [ -e /gone ] || echo gone; stat -c '%a %Y' /kept; readlink /pointer",
    );
    let wanted = format!(
        "12345 54321 640 1234567890 2\nlinked\n52428800\nholes\nfar away\n 00 00 00 00\n\
         /emptied:\nnew\n\n/kept:\nabove\nbelow\ngone\n2751 {CHANGED}\n/owned\n"
    );
    assert_eq!(printed, wanted);

    // Without the capability in the bounding set, or with no_new_privs, the file grants nothing.
    let bind = "/bin/busybox-capable grep CapEff /proc/self/status";
    let as_user = |no_new_privs: bool| {
        daemon.print_with(&image, bind, |config| {
            let security = security(config);
            security.run_as_user = Some(cri_api::v1::Int64Value { value: 1000 });
            security.no_new_privs = no_new_privs;
        })
    };
    assert_eq!(as_user(false), "CapEff:\t0000000000000400\n");
    assert_eq!(as_user(true), "CapEff:\t0000000000000000\n");
}

#[test]
fn two_containers_of_one_image_share_no_environment() {
    let registry = Registry::start();
    registry.push(&Archive::new("x").with("Env", json!(["PATH=/bin", "COMMON=yes"])), "box", "1");
    let daemon = Daemon::start();
    let image = format!("{}/box:1", registry.host());
    daemon.client().pull(&image).unwrap();
    let with = |key: &str, value: &str| {
        let variable = cri_api::v1::KeyValue { key: key.into(), value: value.into() };
        daemon.print_with(&image, "env | grep -e COMMON -e ONLY | sort", |config| config.envs = vec![variable])
    };
    assert_eq!(with("ONLY_ONE", "secret"), "COMMON=yes\nONLY_ONE=secret\n");
    assert_eq!(with("COMMON", "mine"), "COMMON=mine\n");
    assert_eq!(with("ONLY_TWO", "other"), "COMMON=yes\nONLY_TWO=other\n");
}

#[test]
fn a_hard_link_may_refer_to_a_file_of_a_layer_below() {
    let registry = Registry::start();
    let above = Layer::new(|tar| tar.hard_link("linked", "dir/file"));
    registry.push(&Archive::new("x").on_top(file("dir/file", "below\n")).on_top(above), "box", "1");
    let daemon = Daemon::start();
    let image = format!("{}/box:1", registry.host());
    daemon.client().pull(&image).unwrap();
    assert_eq!(daemon.print_in(&image, "cat /linked /dir/file"), "below\nbelow\n");
}
