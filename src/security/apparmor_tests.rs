use std::fs;

use super::*;

/// A fake host: the kernel's files of AppArmor below a directory, and a parser that records its input.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new(enabled: &str, profiles: &str) -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap() };
        host.write("sys/module/apparmor/parameters/enabled", enabled);
        host.write("sys/kernel/security/apparmor/profiles", profiles);
        host
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.dir.path().join(file)).unwrap_or_default()
    }

    /// Creates a parser that runs the shell script `does` in the host's directory.
    fn with_parser(&self, does: &str) -> Apparmor {
        let parser = self.dir.path().join("apparmor_parser");
        let script =
            format!("#!/bin/sh\ncd {:?} || exit 1\necho \"$@\" >>arguments\ncat >given\n{does}\n", self.dir.path());
        // Written by another process: execve(2) fails while a child of this process has the file open
        // for writing.
        let mut writer = Command::new("sh");
        writer.args(["-c", "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"", "sh"]).arg(&parser).arg(script);
        assert!(writer.status().unwrap().success());
        Apparmor::at(self.dir.path().to_owned(), Some(parser))
    }

    fn bare(&self) -> Apparmor {
        Apparmor::at(self.dir.path().to_owned(), None)
    }
}

const LOADS: &str = "echo 'crisp-default (enforce)' >>sys/kernel/security/apparmor/profiles";

fn named(name: &str) -> Profile {
    Profile::Localhost(name.to_owned())
}

#[test]
fn a_host_without_apparmor_skips_the_default_and_refuses_a_named_profile() {
    let disabled = Host::new("N\n", "");
    let nothing = Host { dir: tempfile::tempdir().unwrap() };
    for apparmor in [disabled.bare(), nothing.bare()] {
        for asked in [None, Some(&Profile::RuntimeDefault), Some(&Profile::Unconfined)] {
            assert_eq!(apparmor.profile(asked, false, Some("configured")).unwrap(), None);
        }
        let refused = apparmor.profile(Some(&named("x")), false, None).unwrap_err();
        assert_eq!(
            (refused.kind(), refused.to_string().as_str()),
            (ErrorKind::Unsupported, "this host has no AppArmor: the requested profile cannot be used")
        );
    }
}

#[test]
fn a_profile_must_be_loaded_under_its_full_name() {
    let host = Host::new("Y\n", "web (enforce)\n/usr/bin/a (b)//c (complain)\n");
    let apparmor = host.bare();
    for name in ["web", "/usr/bin/a (b)//c"] {
        for privileged in [false, true] {
            assert_eq!(apparmor.profile(Some(&named(name)), privileged, None).unwrap().as_deref(), Some(name));
        }
    }
    for name in ["we", "web (enforce)", "WEB", "c", ""] {
        let refused = apparmor.profile(Some(&named(name)), false, None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Precondition);
        assert_eq!(
            refused.to_string(),
            format!("AppArmor profile {name:?} is not loaded: load it with apparmor_parser")
        );
    }
    fs::remove_file(host.dir.path().join("sys/kernel/security/apparmor/profiles")).unwrap();
    let unknown = apparmor.profile(Some(&named("web")), false, None).unwrap_err();
    assert!(unknown.to_string().contains("apparmor/profiles"), "{unknown}");
    assert_eq!(apparmor.profile(None, false, None).unwrap(), None, "no profile requested");
    apparmor.profile(Some(&Profile::RuntimeDefault), false, None).unwrap_err();
}

#[test]
fn the_default_is_loaded_once_and_again_after_an_unload() {
    let host = Host::new("Y\n", "");
    let apparmor = host.with_parser(LOADS);
    for asked in [None, Some(&Profile::RuntimeDefault), None] {
        assert_eq!(apparmor.profile(asked, false, None).unwrap().as_deref(), Some("crisp-default"));
        assert_eq!(apparmor.profile(asked, true, None).unwrap(), None, "not for privileged containers");
        assert_eq!(apparmor.profile(Some(&Profile::Unconfined), false, None).unwrap(), None);
    }
    assert_eq!(host.read("arguments"), "--skip-cache --replace\n");
    assert_eq!(host.read("given"), TEXT);
    host.write("sys/kernel/security/apparmor/profiles", "");
    apparmor.profile(None, false, None).unwrap_err();
    assert_eq!(apparmor.profile(None, false, None).unwrap().as_deref(), Some("crisp-default"));
    assert_eq!(host.read("arguments").lines().count(), 2);
}

#[test]
fn the_profile_text_depends_on_the_host() {
    let host = Host::new("Y\n", "");
    host.write("etc/apparmor.d/abi/3.0", "");
    host.write("proc/self/attr/current", "crisp (enforce)\n");
    host.with_parser(LOADS).profile(None, false, None).unwrap();
    let given = host.read("given");
    assert!(given.starts_with("abi <abi/3.0>,\n"), "{given}");
    assert!(given.contains("\n@{CRISP}=unconfined \"crisp\"\n"), "{given}");
    host.write("proc/self/attr/apparmor/current", "unconfined\n");
    host.with_parser("").profile(None, false, None).unwrap();
    assert!(host.read("given").contains("\n@{CRISP}=unconfined\n"));
}

#[test]
fn a_failed_or_missing_parser_is_reported() {
    let host = Host::new("Y\n", "");
    let refused = host.with_parser("echo 'syntax error' >&2; exit 3").profile(None, false, None).unwrap_err();
    assert_eq!(refused.to_string(), "loading the default AppArmor profile: apparmor_parser failed: syntax error");
    let refused = host.with_parser("").profile(Some(&Profile::RuntimeDefault), false, None).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "AppArmor profile \"crisp-default\" is not loaded: load it with apparmor_parser",
        "despite the parser's exit status 0"
    );
    let bare = host.bare();
    assert_eq!(bare.profile(None, false, None).unwrap(), None, "no profile requested");
    let refused = bare.profile(Some(&Profile::RuntimeDefault), false, None).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Precondition);
    host.write("sys/kernel/security/apparmor/profiles", "crisp-default (enforce)\n");
    assert_eq!(bare.profile(None, false, None).unwrap().as_deref(), Some("crisp-default"), "loaded by another program");
}

#[test]
fn the_default_of_a_handler_must_be_loaded() {
    let host = Host::new("Y\n", "strict (enforce)\n");
    let apparmor = host.bare();
    assert_eq!(apparmor.profile(None, false, Some("strict")).unwrap().as_deref(), Some("strict"));
    for asked in [None, Some(&Profile::RuntimeDefault)] {
        let refused = apparmor.profile(asked, false, Some("gone")).unwrap_err();
        assert_eq!(refused.to_string(), "AppArmor profile \"gone\" is not loaded: load it with apparmor_parser");
    }
}
