use std::error::Error as _;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

const ALLOW_ALL: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW"}"#;
const NO_MOUNT: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mount"], "action": "SCMP_ACT_ERRNO"}]}"#;

struct Place {
    dir: tempfile::TempDir,
    filters: FilterCache,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let filters = FilterCache::new(dir.path().join("seccomp"));
        Self { dir, filters }
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn localhost(&self, path: &Path) -> Result<PathBuf, SeccompError> {
        self.filters.path_for(ProfileSource::Localhost(path), &CapSet::default())
    }

    fn kept(&self) -> usize {
        fs::read_dir(self.dir.path().join("seccomp")).unwrap().count()
    }
}

#[test]
fn the_default_filter_is_stored_once_per_relevant_set_of_capabilities() {
    let place = Place::new();
    let path = |caps: &[&str]| place.filters.path_for(ProfileSource::RuntimeDefault, &caps.iter().collect()).unwrap();
    let plain = path(&["CHOWN"]);
    assert_eq!(plain, path(&["CHOWN"]));
    assert_eq!(plain, path(&["KILL"]), "neither changes the filter");
    assert_ne!(plain, path(&["SYS_ADMIN"]));
    assert_eq!(place.kept(), 2, "no temporary file is left");
    let kept = fs::read(&plain).unwrap();
    assert_eq!(kept, compile(&runtime_default(), &CapSet::default()).unwrap().bytes);
    assert_eq!(fs::metadata(place.dir.path().join("seccomp")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_changed_profile_is_compiled_and_the_old_filter_is_kept() {
    let place = Place::new();
    let profile = place.file("p.json", ALLOW_ALL);
    let first = place.localhost(&profile).unwrap();
    assert_eq!(place.localhost(&profile).unwrap(), first);
    place.file("p.json", NO_MOUNT);
    let second = place.localhost(&profile).unwrap();
    assert_ne!(first, second);
    assert!(first.exists());
    let copy = place.file("copy.json", NO_MOUNT);
    assert_eq!(place.localhost(&copy).unwrap(), second, "the same content, the same file");
}

#[test]
fn a_removed_or_corrupt_filter_is_written_again() {
    let place = Place::new();
    let get = |filters: &FilterCache| filters.path_for(ProfileSource::RuntimeDefault, &CapSet::default()).unwrap();
    let path = get(&place.filters);
    let good = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::read(get(&place.filters)).unwrap(), good);
    fs::write(&path, b"short").unwrap();
    let next_daemon = FilterCache::new(place.dir.path().join("seccomp"));
    assert_eq!(fs::read(get(&next_daemon)).unwrap(), good);
}

#[test]
fn an_invalid_profile_is_an_invalid_request_that_names_the_path() {
    let place = Place::new();
    let refused = |path: &Path| {
        let error = place.localhost(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        error.source().map(ToString::to_string)
    };
    assert_eq!(refused(Path::new("/no/such/profile.json")), None);
    assert_eq!(refused(&place.file("p", ALLOW_ALL).join("below")), None);
    assert_eq!(refused(place.dir.path()), None);
    assert_eq!(refused(&place.file("bad.json", "{")).as_deref(), Some("invalid JSON in a container's seccomp profile"));
    let bad_action = place.file("action.json", r#"{"defaultAction": "NO"}"#);
    assert_eq!(refused(&bad_action).as_deref(), Some(r#"unknown action "NO" in a container's seccomp profile"#));
    let huge = place.file("huge.json", &" ".repeat(2 << 20));
    assert_eq!(refused(&huge).as_deref(), Some("a container's seccomp profile must have at most 1048576 bytes"));
    let notify = place.file("notify.json", r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#);
    assert_eq!(place.localhost(&notify).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_fifo_is_refused_without_waiting_for_a_writer() {
    let place = Place::new();
    let pipe = place.dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    assert!(matches!(place.localhost(&pipe), Err(SeccompError::NotAFile(_))));
}
