use super::super::entry::{ForeignWrite, HistoryEntry, LaterFacts};
use super::*;
use crate::runtime::resize::caller::Caller;

const BOUNDS: Bounds = Bounds { entries: 4, file_bytes: 10_000, node_bytes: u64::MAX };

fn entry(began_ns: u64) -> Line {
    Line::Resize(HistoryEntry {
        began_ns,
        duration_us: 7,
        container: None,
        caller: Caller::default(),
        files: Vec::new(),
        oom_score_adj: None,
        outcome: "applied".to_owned(),
        reason: None,
        error: None,
        reclaimed_bytes: None,
    })
}

fn began(ring: &mut Ring) -> Vec<u64> {
    ring.read(BOUNDS).iter().map(|item| item.entry.began_ns).collect()
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_newest_entries_are_kept_also_by_another_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let mut ring = Ring::open(dir.path().to_owned());
    assert!(began(&mut ring).is_empty());
    assert!(files(dir.path()).is_empty(), "reading writes nothing");
    for number in 1..=13 {
        ring.append(&entry(number), BOUNDS).unwrap();
        if number % 5 == 0 {
            ring = Ring::open(dir.path().to_owned());
        }
        let oldest = number.saturating_sub(3).max(1);
        assert_eq!(began(&mut ring), (oldest..=number).collect::<Vec<_>>());
    }
    assert_eq!(files(dir.path()), [OLDER, FILE]);
    let size: u64 = [OLDER, FILE].iter().map(|name| fs::metadata(dir.path().join(name)).unwrap().len()).sum();
    assert_eq!(ring.bytes(), size);
}

#[test]
fn a_file_is_bounded_in_bytes_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut ring = Ring::open(dir.path().to_owned());
    let bounds = Bounds { entries: 1000, file_bytes: 400, ..BOUNDS };
    for number in 0..50 {
        ring.append(&entry(number), bounds).unwrap();
        assert!(fs::metadata(dir.path().join(FILE)).unwrap().len() <= 400);
    }
    assert!(ring.bytes() <= 800);
}

#[test]
fn later_facts_are_shown_with_their_entry() {
    let dir = tempfile::tempdir().unwrap();
    let mut ring = Ring::open(dir.path().to_owned());
    for number in 1..=4 {
        ring.append(&entry(number), BOUNDS).unwrap();
    }
    let write = ForeignWrite { at_ns: 9, file: cgroup::Knob::CPU_MAX, found: Some("1 2".to_owned()) };
    for kills in [1, 2] {
        let drift = vec![write.clone(); 5];
        let later = LaterFacts { of: 4, drift, oom_kills: Some(kills), throttled_periods: None };
        ring.append(&Line::Later(later), BOUNDS).unwrap();
    }
    ring.append(&Line::Later(LaterFacts { of: 99, oom_kills: Some(1), ..LaterFacts::default() }), BOUNDS).unwrap();
    // The facts are in the file before.
    ring.append(&entry(5), BOUNDS).unwrap();
    let items = ring.read(BOUNDS);
    let facts: Vec<_> = items.iter().map(|item| (item.entry.began_ns, item.drift.len(), item.oom_kills)).collect();
    assert_eq!(facts, [(2, 0, 0), (3, 0, 0), (4, 8, 2), (5, 0, 0)], "drift is bounded, counts are replaced");
}

#[test]
fn a_partial_last_line_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let mut ring = Ring::open(dir.path().to_owned());
    ring.append(&entry(1), BOUNDS).unwrap();
    let path = dir.path().join(FILE);
    let whole = fs::read(&path).unwrap();
    ring.append(&entry(2), BOUNDS).unwrap();
    let both = fs::read(&path).unwrap();
    for cut in whole.len()..both.len() {
        fs::write(&path, &both[..cut]).unwrap();
        let mut ring = Ring::open(dir.path().to_owned());
        assert_eq!(began(&mut ring), [1], "cut off at {cut}");
        ring.append(&entry(3), BOUNDS).unwrap();
        assert_eq!(began(&mut ring), [1, 3], "cut off at {cut}");
    }
}

#[test]
fn a_damaged_file_or_one_of_a_later_release_is_renamed() {
    for text in [
        "nonsense\n",
        "{\"version\":2}\n{\"x\":1}\n",
        "{\"version\":1}\n{\"resize\":\n",
        "\n",
        "{\"version\":1}\n\0\0\n",
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), text).unwrap();
        let mut ring = Ring::open(dir.path().to_owned());
        ring.append(&entry(1), BOUNDS).unwrap();
        assert_eq!(began(&mut ring), [1], "{text:?}");
        assert_eq!(fs::read_to_string(dir.path().join(DAMAGED)).unwrap(), text);
        assert!(ring.bytes() > 0);
    }
}

#[test]
fn the_format_of_a_line_is_fixed() {
    let text = r#"{"resize":{"began_ns":1,"duration_us":2,"container":{"id":"ID","name":"main"},"caller":{"peer":{"pid":7,"uid":0,"program":"kubelet"},"trace":"0af7"},"files":[{"file":"memory.max","old":"max","new":"4096"}],"oom_score_adj":[null,5],"outcome":"refused","reason":"below_usage","error":"no","reclaimed_bytes":3}}"#;
    let text = text.replace("ID", &"a".repeat(64));
    let line: Line = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&line).unwrap(), text);
    let later = r#"{"later":{"of":1,"drift":[{"at_ns":2,"file":"cpu.max","found":"max"}],"oom_kills":1,"throttled_periods":4}}"#;
    let line: Line = serde_json::from_str(later).unwrap();
    assert_eq!(serde_json::to_string(&line).unwrap(), later);
}
