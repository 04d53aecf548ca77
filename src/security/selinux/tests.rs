use std::fs;

use super::*;

/// A fake host: the files that crisp reads, below a directory, and a policy with eight categories.
struct Host {
    dir: tempfile::TempDir,
}

const CONTEXTS: &str = "# of containers\nprocess = \"system_u:system_r:container_t:s0\"\n\
    content=\"system_u:object_r:other_t:s0\"\nfile = \"system_u:object_r:container_file_t:s0\"\n";

impl Host {
    fn new() -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap() };
        host.write("sys/fs/selinux/enforce", "1");
        host.write("proc/self/attr/current", "system_u:system_r:init_t:s0\0");
        host.write("etc/selinux/config", "# a host\nSELINUX=enforcing\nSELINUXTYPE=targeted\n");
        host.write("etc/selinux/targeted/contexts/lxc_contexts", CONTEXTS);
        host
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.dir.path().join(file)).unwrap();
    }

    fn selinux(&self) -> Selinux {
        Selinux::at(self.dir.path().to_owned(), policy)
    }
}

/// A fake kernel: accepts some types and the categories c0 to c7, and returns these sorted.
fn policy(_: &Path, text: &str) -> io::Result<String> {
    let context: Context = text.parse().map_err(io::Error::other)?;
    let mut level = context.level.clone().unwrap_or_default();
    if let Some((sensitivity, categories)) = context.level.as_deref().and_then(|level| level.split_once(':')) {
        let mut numbers: Vec<u16> = categories.split(',').map(|c| c[1..].parse().unwrap()).collect();
        numbers.sort_unstable();
        if numbers.last() > Some(&7) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        let numbers: Vec<String> = numbers.iter().map(|number| format!("c{number}")).collect();
        level = format!("{sensitivity}:{}", numbers.join(","));
    }
    match context.kind.as_str() {
        "container_t" | "container_file_t" | "own_t" => {
            Ok(Context { level: Some(level).filter(|level| !level.is_empty()), ..context }.to_string())
        }
        "broken_t" => Err(rustix::io::Errno::IO.into()),
        _ => Err(rustix::io::Errno::INVAL.into()),
    }
}

fn label(kind: &str, level: &str) -> SeLinux {
    SeLinux { user: String::new(), role: String::new(), kind: kind.into(), level: level.into() }
}

const SILENT: LabelRequest<'_> = LabelRequest { asked: None, of_pod: None, free: false };

fn level(labels: &Labels) -> String {
    labels.mount.parse::<Context>().unwrap().level.unwrap()
}

#[test]
fn a_host_without_selinux_labels_nothing_and_ignores_options() {
    let host = Host::new();
    let absent = |selinux: &Selinux| {
        assert!(!selinux.is_there());
        let request = label("own_t", "s0:c1,c2");
        for (asked, on) in [(None, true), (Some(&request), true), (Some(&request), false)] {
            assert_eq!(selinux.of_pod("p", asked, on).unwrap(), None);
            assert_eq!(selinux.of_container("c", None, LabelRequest { asked, ..SILENT }).unwrap(), None);
        }
        assert!(selinux.ignored.is_completed());
    };
    host.write("proc/self/attr/current", "kernel\0");
    absent(&host.selinux());
    host.write("proc/self/attr/current", "system_u:system_r:init_t:s0");
    host.remove("sys/fs/selinux/enforce");
    absent(&host.selinux());
}

#[test]
fn every_pod_has_its_own_level_until_it_is_freed() {
    let host = Host::new();
    let selinux = host.selinux();
    let mut levels = std::collections::BTreeSet::new();
    for number in 0..28 {
        let labels = selinux.of_pod(&format!("p{number}"), None, true).unwrap().unwrap();
        let level = level(&labels);
        assert_eq!(labels.process, Some(format!("system_u:system_r:container_t:{level}")));
        assert_eq!(labels.mount, format!("system_u:object_r:container_file_t:{level}"));
        assert!(levels.insert(level));
    }
    let refused = selinux.of_pod("more", None, true).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exhausted);
    selinux.free("p9");
    let labels = selinux.of_pod("more", None, true).unwrap().unwrap();
    assert!(levels.contains(&level(&labels)));
    // A new daemon that has read the records of the previous one.
    let next = host.selinux();
    for number in (0..28).filter(|number| *number != 9) {
        let own = levels.iter().find(|own| **own != level(&labels)).unwrap().clone();
        levels.remove(&own);
        let mount = format!("system_u:object_r:container_file_t:{own}");
        next.remember(&format!("p{number}"), Some(&Labels { process: None, mount }));
    }
    next.remember("none", None);
    assert_eq!(level(&next.of_pod("only", None, true).unwrap().unwrap()), level(&labels));
}

#[test]
fn requested_options_override_defaults_and_are_checked_by_the_kernel() {
    let host = Host::new();
    let selinux = host.selinux();
    let request = label("own_t", "s0:c3,c1");
    let labels = selinux.of_pod("p", Some(&request), true).unwrap().unwrap();
    assert_eq!(labels.process.as_deref(), Some("system_u:system_r:own_t:s0:c1,c3"));
    assert_eq!(labels.mount, "system_u:object_r:container_file_t:s0:c1,c3");
    assert_eq!(labels.shared(), "system_u:object_r:container_file_t:s0");
    // Another pod may request the same level.
    selinux.of_pod("q", Some(&request), true).unwrap().unwrap();
    for (bad, context) in [
        (label("bad_t", ""), "system_u:system_r:bad_t:s0"),
        (label("", "s0:c8"), "system_u:system_r:container_t:s0:c8"),
    ] {
        let refused = selinux.of_pod("r", Some(&bad), true).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Precondition);
        assert_eq!(refused.to_string(), format!("unknown SELinux context {context}: not in the host's policy"));
    }
    let failed = selinux.of_pod("r", Some(&label("broken_t", "")), true).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Internal);
}

#[test]
fn containers_have_their_pods_labels_except_for_requested_options() {
    let host = Host::new();
    let selinux = host.selinux();
    let pod = selinux.of_pod("p", Some(&label("", "s0:c0,c1")), true).unwrap().unwrap();
    let of = |request: LabelRequest<'_>| selinux.of_container("c", Some(&pod), request);
    assert_eq!(of(SILENT).unwrap(), Some(pod.clone()));
    let (kind, place) = (label("own_t", ""), label("", "s0:c2"));
    let labels = of(LabelRequest { asked: Some(&kind), ..SILENT }).unwrap().unwrap();
    assert_eq!(labels.process.as_deref(), Some("system_u:system_r:own_t:s0:c0,c1"));
    assert_eq!(labels.mount, pod.mount);
    let labels = of(LabelRequest { asked: Some(&place), ..SILENT }).unwrap().unwrap();
    assert_eq!(labels.process.as_deref(), Some("system_u:system_r:container_t:s0:c2"));
    assert_eq!(labels.mount, "system_u:object_r:container_file_t:s0:c2");
    assert_eq!(
        of(LabelRequest { asked: Some(&label("bad_t", "")), ..SILENT }).unwrap_err().kind(),
        ErrorKind::Precondition
    );
}

#[test]
fn a_privileged_container_has_no_label_unless_a_type_is_requested() {
    let host = Host::new();
    let selinux = host.selinux();
    let pod = selinux.of_pod("p", None, true).unwrap().unwrap();
    let (kind, place) = (label("own_t", ""), label("", "s0:c2"));
    let of = |asked, of_pod| {
        selinux.of_container("c", Some(&pod), LabelRequest { asked, of_pod, free: true }).unwrap().unwrap()
    };
    assert_eq!(of(None, None), Labels { process: None, ..pod.clone() });
    let labels = of(Some(&place), Some(&place));
    assert_eq!((labels.process.as_deref(), level(&labels).as_str()), (None, "s0:c2"));
    assert!(of(Some(&kind), None).process.unwrap().contains(":own_t:"));
    assert!(of(None, Some(&kind)).process.is_some());
}

#[test]
fn default_contexts_are_read_from_the_policys_files() {
    let host = Host::new();
    let own = CONTEXTS.replace("container_t", "own_t");
    host.write("usr/share/containers/selinux/contexts", &own);
    let labels = host.selinux().of_pod("p", None, true).unwrap().unwrap();
    assert!(labels.process.unwrap().contains(":own_t:"));
    host.write("usr/share/containers/selinux/contexts", &CONTEXTS.replace(":s0", ""));
    let labels = host.selinux().of_pod("p", None, true).unwrap().unwrap();
    assert_eq!(labels.mount, "system_u:object_r:container_file_t", "a policy without levels");
    host.remove("usr/share/containers/selinux/contexts");
    host.write("etc/selinux/config", "SELINUXTYPE=../targeted\n");
    let lacking = host.selinux();
    assert_eq!(lacking.of_pod("p", None, true).unwrap(), None, "no options requested");
    let refused = lacking.of_pod("p", Some(&label("own_t", "")), true).unwrap_err();
    assert!(matches!(refused, SelinuxError::NoContexts) && refused.kind() == ErrorKind::Precondition);
    host.write("etc/selinux/config", "SELINUXTYPE=\"targeted\"\n");
    host.write("etc/selinux/targeted/contexts/lxc_contexts", "process = \"nonsense\"\nfile = \"a:b:c\"\n");
    assert!(matches!(host.selinux().of_pod("p", None, true).unwrap_err(), SelinuxError::Malformed(_)));
}

#[test]
fn a_handler_with_selinux_off_sets_no_labels_and_refuses_options() {
    let host = Host::new();
    let selinux = host.selinux();
    assert_eq!(selinux.of_pod("p", None, false).unwrap(), None);
    let refused = selinux.of_pod("p", Some(&label("own_t", "")), false).unwrap_err();
    assert!(matches!(refused, SelinuxError::Off) && refused.kind() == ErrorKind::Precondition);
    let request = label("own_t", "");
    let refused = selinux.of_container("c", None, LabelRequest { asked: Some(&request), ..SILENT }).unwrap_err();
    assert!(matches!(refused, SelinuxError::Unlabelled) && refused.kind() == ErrorKind::Precondition);
}
