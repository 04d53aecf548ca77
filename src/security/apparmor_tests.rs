use std::fs;

use super::*;

/// A host, as far as AppArmor looks at it: its files below a directory, and a parser that writes down what it is given.
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

    /// `does` is a shell script, in the host's directory.
    fn with_parser(&self, does: &str) -> Apparmor {
        let parser = self.dir.path().join("apparmor_parser");
        let script =
            format!("#!/bin/sh\ncd {:?} || exit 1\necho \"$@\" >>asked\ncat >given\n{does}\n", self.dir.path());
        // By another process: a file that any child of this one holds open for writing cannot be executed.
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
fn a_host_without_apparmor_grants_the_default_and_refuses_a_name() {
    let disabled = Host::new("N\n", "");
    let nothing = Host { dir: tempfile::tempdir().unwrap() };
    for apparmor in [disabled.bare(), nothing.bare()] {
        for asked in [None, Some(&Profile::RuntimeDefault), Some(&Profile::Unconfined)] {
            assert_eq!(apparmor.profile(asked, false, Some("configured")).unwrap(), None);
        }
        let refused = apparmor.profile(Some(&named("x")), false, None).unwrap_err();
        assert_eq!(
            (refused.kind(), refused.to_string().as_str()),
            (ErrorKind::Unsupported, "this host has no AppArmor")
        );
    }
}

#[test]
fn a_profile_is_used_by_its_whole_name_if_it_is_loaded() {
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
        assert_eq!(refused.to_string(), format!("no profile {name:?} is loaded"));
    }
    fs::remove_file(host.dir.path().join("sys/kernel/security/apparmor/profiles")).unwrap();
    let unknown = apparmor.profile(Some(&named("web")), false, None).unwrap_err();
    assert!(unknown.to_string().contains("apparmor/profiles"), "{unknown}");
    assert_eq!(apparmor.profile(None, false, None).unwrap(), None, "nobody asked");
    apparmor.profile(Some(&Profile::RuntimeDefault), false, None).unwrap_err();
}

#[test]
fn the_default_is_loaded_once_and_again_where_somebody_unloaded_it() {
    let host = Host::new("Y\n", "");
    let apparmor = host.with_parser(LOADS);
    for asked in [None, Some(&Profile::RuntimeDefault), None] {
        assert_eq!(apparmor.profile(asked, false, None).unwrap().as_deref(), Some("crisp-default"));
        assert_eq!(apparmor.profile(asked, true, None).unwrap(), None, "not for the privileged");
        assert_eq!(apparmor.profile(Some(&Profile::Unconfined), false, None).unwrap(), None);
    }
    assert_eq!(host.read("asked"), "--skip-cache --replace\n");
    assert_eq!(host.read("given"), TEXT);
    host.write("sys/kernel/security/apparmor/profiles", "");
    apparmor.profile(None, false, None).unwrap_err();
    assert_eq!(apparmor.profile(None, false, None).unwrap().as_deref(), Some("crisp-default"));
    assert_eq!(host.read("asked").lines().count(), 2);
}

#[test]
fn the_text_follows_the_host() {
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
fn a_parser_that_fails_or_is_missing_is_told() {
    let host = Host::new("Y\n", "");
    let refused = host.with_parser("echo 'syntax error' >&2; exit 3").profile(None, false, None).unwrap_err();
    assert_eq!(refused.to_string(), "loading the default profile: apparmor_parser says: syntax error");
    let said = host.with_parser("").profile(Some(&Profile::RuntimeDefault), false, None).unwrap_err();
    assert_eq!(said.to_string(), "no profile \"crisp-default\" is loaded", "whatever the parser's status was");
    let bare = host.bare();
    assert_eq!(bare.profile(None, false, None).unwrap(), None, "nobody asked");
    let refused = bare.profile(Some(&Profile::RuntimeDefault), false, None).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Precondition);
    host.write("sys/kernel/security/apparmor/profiles", "crisp-default (enforce)\n");
    assert_eq!(bare.profile(None, false, None).unwrap().as_deref(), Some("crisp-default"), "loaded by somebody else");
}

#[test]
fn a_handler_may_have_another_default_which_must_be_there() {
    let host = Host::new("Y\n", "strict (enforce)\n");
    let apparmor = host.bare();
    assert_eq!(apparmor.profile(None, false, Some("strict")).unwrap().as_deref(), Some("strict"));
    for asked in [None, Some(&Profile::RuntimeDefault)] {
        let refused = apparmor.profile(asked, false, Some("gone")).unwrap_err();
        assert_eq!(refused.to_string(), "no profile \"gone\" is loaded");
    }
}
