use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use model::{ErrorClass as _, ErrorKind};
use serde_json::{Value, json};

use super::{CdiError, CdiRegistry, Edits, Owner};

const ROOT: Owner = Owner { uid: 0, gid: 0 };

/// Two directories of specs; the second overrides the first.
struct TestEnv {
    dir: tempfile::TempDir,
    specs: CdiRegistry,
}

impl TestEnv {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let dirs = ["low", "high"].map(|name| dir.path().join(name)).to_vec();
        Self { specs: CdiRegistry::new(dirs), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn spec(&self, name: &str, devices: &[(&str, Value)]) -> PathBuf {
        let devices: Vec<_> =
            devices.iter().map(|(name, edits)| json!({"name": name, "containerEdits": edits})).collect();
        let spec = json!({"cdiVersion": "0.7.0", "kind": "v.example/c", "devices": devices});
        self.write(name, &spec.to_string())
    }

    fn find(&self, names: &[&str]) -> Result<Edits, CdiError> {
        self.specs.find(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), ROOT)
    }

    fn env(&self, name: &str) -> Vec<String> {
        self.find(&[name]).unwrap().env
    }

    #[track_caller]
    fn refusal(&self, names: &[&str], kind: ErrorKind, words: &[&str]) -> String {
        let error = self.find(names).unwrap_err();
        let text = model::error_chain::chain(&error);
        assert_eq!(error.kind(), kind, "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{text:?} lacks one of {words:?}");
        text
    }
}

fn env(variable: &str) -> Value {
    json!({"env": [variable]})
}

#[test]
fn devices_are_read_from_json_and_yaml_files_only() {
    let test_env = TestEnv::new();
    test_env.spec("low/a.json", &[("0", env("A=json"))]);
    test_env.write(
        "high/b.yaml",
        "# as people write it\ncdiVersion: 0.7.0\nkind: v.example/y\ncontainerEdits:\n  env:\n  - ALL=1\ndevices:\n- name: 0\n  containerEdits:\n    \
         deviceNodes:\n    - path: /dev/x\n      hostPath: /dev/null\n      fileMode: 0640\n- name: \"1\"\n  containerEdits:\n    env: [ONE=1]\n",
    );
    for other in ["low/c.yml", "low/d.json.tmp", "low/e", "low/f.JSON", "low/sub/g.json"] {
        test_env.spec(other, &[("no", env("A=1"))]);
    }
    assert_eq!(test_env.env("v.example/c=0"), ["A=json"]);
    let edits = test_env.find(&["v.example/y=0", "v.example/y=1"]).unwrap();
    assert_eq!(edits.env, ["ALL=1", "ONE=1"], "edits for all devices of a spec are applied once");
    assert_eq!(edits.nodes[0].node.file_mode(), Some(0o640), "octal, as in containerd and CRI-O");
    assert_eq!(
        edits.used.iter().map(|used| used.name.as_str()).collect::<Vec<_>>(),
        ["v.example/y=0", "v.example/y=1"]
    );
    assert_eq!(edits.used[0].spec, test_env.path("high/b.yaml"));
    test_env.refusal(&["v.example/c=no"], ErrorKind::Precondition, &["v.example/c=no"]);
}

#[test]
fn the_error_lists_all_missing_devices_and_all_invalid_files() {
    let test_env = TestEnv::new();
    test_env.spec("low/good.json", &[("here", env("A=1"))]);
    let broken = test_env.write("low/broken.yaml", "cdiVersion: [");
    let wrong = test_env.spec("high/wrong.json", &[("x/y", env("A=1"))]);
    let words =
        ["v.example/c=1", "other.example/c=2", broken.to_str().unwrap(), wrong.to_str().unwrap(), "devices[0].name"];
    let text =
        test_env.refusal(&["v.example/c=1", "v.example/c=here", "other.example/c=2"], ErrorKind::Precondition, &words);
    assert!(!text.contains("c=here") && !text.contains("good.json") && !text.contains('\n'), "{text}");
    assert_eq!(test_env.env("v.example/c=here"), ["A=1"], "an invalid file affects only its own devices");
    let many: Vec<String> = (0..20).map(|n| format!("v.example/c={n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    test_env.refusal(&many, ErrorKind::Precondition, &["v.example/c=7", "and 12 more"]);
}

#[test]
fn a_later_directory_overrides_and_duplicates_are_refused() {
    let test_env = TestEnv::new();
    let (one, two) =
        (test_env.spec("low/a.json", &[("x", env("A=a"))]), test_env.spec("low/b.json", &[("x", env("A=b"))]));
    test_env.refusal(
        &["v.example/c=x"],
        ErrorKind::Precondition,
        &["v.example/c=x is defined more than once", one.to_str().unwrap(), two.to_str().unwrap()],
    );
    let high = test_env.spec("high/c.json", &[("x", env("A=high"))]);
    assert_eq!(test_env.env("v.example/c=x"), ["A=high"], "duplicates in an earlier directory are irrelevant");
    fs::remove_file(high).unwrap();
    fs::remove_file(one).unwrap();
    assert_eq!(test_env.env("v.example/c=x"), ["A=b"]);
}

#[test]
fn written_replaced_and_removed_specs_take_effect_at_once() {
    let test_env = TestEnv::new();
    test_env.refusal(&["v.example/c=x"], ErrorKind::Precondition, &["no CDI spec in"]);
    let path = test_env.spec("high/a.json", &[("x", env("A=1"))]);
    assert_eq!(test_env.env("v.example/c=x"), ["A=1"]);
    // Writes in place with the same length, possibly with the same timestamp.
    for n in 2..9 {
        test_env.spec("high/a.json", &[("x", env(&format!("A={n}")))]);
        assert_eq!(test_env.env("v.example/c=x"), [format!("A={n}")]);
    }
    let link = test_env.path("low/link.json");
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    let target = test_env.spec("elsewhere/t.json", &[("y", env("B=1"))]);
    symlink(&target, &link).unwrap();
    assert_eq!(test_env.env("v.example/c=y"), ["B=1"]);
    test_env.spec("elsewhere/t.json", &[("y", env("B=2"))]);
    assert_eq!(test_env.env("v.example/c=y"), ["B=2"], "also behind a link");
    fs::remove_file(path).unwrap();
    test_env.refusal(&["v.example/c=x"], ErrorKind::Precondition, &["v.example/c=x"]);
    fs::remove_file(target).unwrap();
    test_env.refusal(&["v.example/c=y"], ErrorKind::Precondition, &["link.json"]);
}

#[test]
fn a_file_that_did_not_change_is_not_read_again() {
    let test_env = TestEnv::new();
    let path = test_env.spec("low/a.json", &[("x", env("A=1"))]);
    assert_eq!(test_env.env("v.example/c=x"), ["A=1"]);
    let before = test_env.specs.look();
    // Waits until the file counts as settled; a test cannot set its ctime.
    std::thread::sleep(std::time::Duration::from_millis(3100));
    let settled = test_env.specs.look();
    assert!(!std::sync::Arc::ptr_eq(&before, &settled), "a file changed recently is read once more");
    assert!(std::sync::Arc::ptr_eq(&settled, &test_env.specs.look()));
    fs::write(&path, "").unwrap();
    assert!(!std::sync::Arc::ptr_eq(&settled, &test_env.specs.look()));
}

#[test]
fn fifos_devices_and_oversized_files_are_refused_without_waiting() {
    let test_env = TestEnv::new();
    fs::create_dir_all(test_env.path("low")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        test_env.path("low/fifo.json"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    symlink("/dev/zero", test_env.path("low/zero.json")).unwrap();
    symlink("loop.json", test_env.path("low/loop.json")).unwrap();
    test_env.write("low/long.json", &" ".repeat(3 << 20));
    test_env.write("low/latin.json", "");
    fs::write(test_env.path("low/latin.json"), b"{\"a\": \"\xff\"}").unwrap();
    let open = test_env.spec("low/open.json", &[("x", env("A=1"))]);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
    let names = [
        "fifo.json: the CDI spec (cdi.spec_dirs) is not a regular file",
        "zero.json: the CDI spec (cdi.spec_dirs) is not a regular file",
        "loop.json",
        "long.json: the CDI spec (cdi.spec_dirs) has more",
        "latin.json",
    ];
    test_env.refusal(&["v.example/c=x"], ErrorKind::Precondition, &names);
    test_env.refusal(
        &["v.example/c=x"],
        ErrorKind::Precondition,
        &["open.json: the CDI spec (cdi.spec_dirs) must not be world-writable"],
    );
}

#[test]
fn hostile_documents_are_refused_with_bounded_work() {
    let test_env = TestEnv::new();
    let mut laughs = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (above, name) in ('a'..='y').zip('b'..='z') {
        laughs.push_str(&format!("{name}: &{name} [{}]\n", vec![format!("*{above}"); 9].join(", ")));
    }
    test_env.write("low/laughs.yaml", &laughs);
    test_env.write("low/deep.yaml", &"[".repeat(100_000));
    test_env.write("low/deep.json", &"[".repeat(100_000));
    test_env.write("low/two.yaml", "cdiVersion: 1.0.0\nkind: v.example/c\n---\nkind: v.example/c\n");
    test_env.write("low/twice.yaml", "cdiVersion: 1.0.0\ncdiVersion: 1.0.0\nkind: v.example/c\ndevices: []\n");
    test_env.write("low/future.json", r#"{"cdiVersion": "9.0.0", "kind": "v.example/c", "brandNew": {}}"#);
    let names = [
        "laughs.yaml",
        "deep.yaml",
        "deep.json",
        "two.yaml",
        "twice.yaml",
        "future.json: unknown cdiVersion \"9.0.0\" of the CDI spec (cdi.spec_dirs)",
    ];
    test_env.refusal(&["v.example/c=x"], ErrorKind::Precondition, &names);
}

/// A valid spec, of which the test replaces a piece.
const FULL: &str = r#"{"cdiVersion": "0.7.0", "kind": "v.example/c", "annotations": {"a": "b"}, "devices": [{"name": "x",
"containerEdits": {"env": ["A=b"], "deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/null", "major": 1, "fileMode": 438}],
"mounts": [{"hostPath": "/usr", "containerPath": "/x", "options": ["ro"]}], "additionalGids": [1], "hooks": [{"hookName":
"createContainer", "path": "/bin/true", "timeout": 1}]}}], "containerEdits": {"env": ["C=d"]}}"#;

proptest::proptest! {
    #[test]
    fn any_text_is_accepted_or_refused_without_panic(
        piece in "[\\PC\\n\\[\\]{}\":,0-9&*!|>%@#-]{0,12}",
        begin in 0..FULL.len(),
        length in 0_usize..20,
        anything in "\\PC{0,200}",
    ) {
        let test_env = TestEnv::new();
        let end = (begin + length).min(FULL.len());
        let text = format!("{}{piece}{}", &FULL[..begin], &FULL[end..]);
        for name in ["a.json", "a.yaml"] {
            test_env.write(&format!("low/{name}"), &text);
            test_env.write(&format!("high/{name}"), &anything);
            // The result does not matter, only that the call returns.
            test_env.find(&["v.example/c=x"]).ok();
            fs::remove_file(test_env.path(&format!("low/{name}"))).unwrap();
            fs::remove_file(test_env.path(&format!("high/{name}"))).unwrap();
        }
    }
}

#[test]
fn a_missing_directory_is_ignored_and_an_unreadable_one_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let specs = CdiRegistry::new(vec![dir.path().join("missing"), file.clone()]);
    let text = specs.find(&["v.example/c=x".to_owned()], ROOT).unwrap_err().to_string();
    assert!(text.contains(&format!("not usable: {}: Not a directory", file.display())), "{text}");
    let text = CdiRegistry::new(vec![]).find(&["v.example/c=x".to_owned()], ROOT).unwrap_err().to_string();
    assert!(text.contains("cdi.spec_dirs is empty"), "{text}");
    assert!(CdiRegistry::new(vec![]).find(&[], ROOT).unwrap().used.is_empty());
}

#[test]
fn missing_fields_of_nodes_are_taken_from_the_host() {
    let test_env = TestEnv::new();
    test_env.spec(
        "low/a.json",
        &[
            ("host", json!({"deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/null"}]})),
            ("named", json!({"deviceNodes": [{"path": "/dev/x", "type": "b", "major": 9, "minor": 7, "uid": 3}]})),
            ("other", json!({"deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/null", "type": "b"}]})),
            ("gone", json!({"deviceNodes": [{"path": "/dev/not-there", "type": "c"}]})),
            ("file", json!({"deviceNodes": [{"path": "/dev/x", "hostPath": "/etc/passwd"}]})),
            ("closed", json!({"deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/zero", "permissions": "none"}]})),
        ],
    );
    let node = |name: &str, owner| {
        let mut edits = test_env.specs.find(&[format!("v.example/c={name}")], owner).unwrap();
        edits.nodes.pop().unwrap()
    };
    let host = node("host", Owner { uid: 1000, gid: 100 });
    assert_eq!((host.node.major(), host.node.minor(), host.node.file_mode()), (1, 3, Some(0o666)));
    assert_eq!((host.node.uid(), host.node.gid()), (Some(1000), Some(100)), "owned by the container's user");
    assert_eq!(host.access.unwrap().to_string(), "rwm");
    let named = node("named", Owner { uid: 1000, gid: 100 });
    assert_eq!((named.node.major(), named.node.minor(), named.node.file_mode()), (9, 7, Some(0o666)));
    assert_eq!((named.node.uid(), named.node.gid()), (Some(3), Some(100)));
    assert!(node("closed", ROOT).access.is_none());
    test_env.refusal(
        &["v.example/c=other"],
        ErrorKind::Precondition,
        &["/dev/null", "is not a device of the type in the CDI spec"],
    );
    test_env.refusal(
        &["v.example/c=file"],
        ErrorKind::Precondition,
        &["/etc/passwd", "is not a device of the type in the CDI spec"],
    );
    test_env.refusal(
        &["v.example/c=gone"],
        ErrorKind::Precondition,
        &["v.example/c=gone", "/dev/not-there", "No such file"],
    );
}

#[test]
fn host_files_needed_by_a_device_must_exist() {
    let test_env = TestEnv::new();
    let mount = |host: &str| json!({"mounts": [{"hostPath": host, "containerPath": "/x", "options": ["ro"]}]});
    let hook = |name: &str, path: &str| json!({"hooks": [{"hookName": name, "path": path}]});
    test_env.spec(
        "low/a.json",
        &[
            ("mount", mount("/usr")),
            ("no-mount", mount("/not/there")),
            ("hook", hook("createContainer", "/bin/true")),
            ("no-hook", hook("poststop", "/not/there")),
            ("not-a-program", hook("createRuntime", "/etc/passwd")),
            ("inside", hook("startContainer", "/only/in/the/container")),
            ("rdt", json!({"intelRdt": {"closID": "x"}})),
        ],
    );
    let edits = test_env.find(&["v.example/c=mount", "v.example/c=hook", "v.example/c=inside"]).unwrap();
    assert_eq!(edits.mounts[0].options().as_ref().unwrap(), &["ro", "rprivate"]);
    assert_eq!(edits.mounts[0].typ().as_deref(), Some("bind"));
    let hooks = edits.hooks.unwrap();
    assert_eq!(hooks.create_container().as_ref().unwrap()[0].path(), Path::new("/bin/true"));
    assert_eq!(hooks.start_container().as_ref().unwrap().len(), 1);
    test_env.refusal(&["v.example/c=no-mount"], ErrorKind::Precondition, &["v.example/c=no-mount", "/not/there"]);
    test_env.refusal(&["v.example/c=no-hook"], ErrorKind::Precondition, &["v.example/c=no-hook", "/not/there"]);
    test_env.refusal(&["v.example/c=not-a-program"], ErrorKind::Precondition, &["/etc/passwd"]);
    test_env.refusal(&["v.example/c=rdt"], ErrorKind::Unsupported, &["v.example/c=rdt", "intelRdt"]);
}
