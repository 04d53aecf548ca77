//! Prints resizes as a table or JSON.

use std::io::{self, Write};

use chrono::{DateTime, SecondsFormat};
use cri_api::admin::{Caller, Resize, ResourceChange};
use serde_json::{Value, json};

const HEAD: [&str; 5] = ["TIME", "POD", "CALLER", "CHANGE", "OUTCOME"];
/// Widths of a table that is printed line by line.
const LEAST: [usize; 4] = [24, 20, 16, 30];

/// Prints resizes, the head of the table once.
pub(super) struct Printer {
    json: bool,
    headed: bool,
}

impl Printer {
    pub(super) fn new(json: bool) -> Self {
        Self { json, headed: false }
    }

    pub(super) fn print(&mut self, out: &mut impl Write, resizes: &[Resize]) -> io::Result<()> {
        if self.json {
            resizes.iter().try_for_each(|resize| writeln!(out, "{}", json(resize)))?;
            return out.flush();
        }
        let rows: Vec<[String; 5]> = resizes.iter().map(row).collect();
        let mut widths = LEAST;
        if resizes.len() != 1 || !self.headed {
            for (column, width) in widths.iter_mut().enumerate() {
                let longest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
                *width = if resizes.len() == 1 { (*width).max(longest) } else { longest.max(HEAD[column].len()) };
            }
        }
        let head = HEAD.map(str::to_owned);
        for row in (!self.headed).then_some(&head).into_iter().chain(&rows) {
            let [time, pod, caller, change, outcome] = row;
            let [a, b, c, d] = widths;
            let line = format!("{time:a$}  {pod:b$}  {caller:c$}  {change:d$}  {outcome}");
            writeln!(out, "{}", line.trim_end())?;
        }
        self.headed = true;
        out.flush()
    }
}

fn row(resize: &Resize) -> [String; 5] {
    let mut target = format!("{}/{}", resize.pod_namespace, resize.pod_name);
    if !resize.container_name.is_empty() {
        target = format!("{target}/{}", resize.container_name);
    }
    let change = |ResourceChange { resource, old, new }: &ResourceChange| format!("{resource} {old} → {new}");
    let changes: Vec<String> = resize.resources.iter().map(change).collect();
    let changes = if changes.is_empty() { "-".to_owned() } else { changes.join(", ") };
    [time(resize.began_ns), target, caller(resize.caller.as_ref()), changes, outcome(resize)]
}

/// Returns the outcome with its reason, and what was found later.
fn outcome(resize: &Resize) -> String {
    let mut text = resize.outcome.replace('_', " ");
    if !resize.reason.is_empty() {
        text = format!("{text} ({})", resize.reason.replace('_', " "));
    }
    if let Some(bytes) = resize.reclaimed_bytes.filter(|bytes| *bytes > 0) {
        text = format!("{text}, reclaimed {}", super::super::units::measured(bytes));
    }
    for write in &resize.drift {
        let found = if write.found.is_empty() { "removed" } else { &write.found };
        text = format!("{text}; then {} changed outside crisp to {found}", write.file);
    }
    if resize.oom_kills > 0 {
        text = format!("{text}; then {} OOM-killed", plural(resize.oom_kills, "process", "processes"));
    }
    if resize.throttled_periods > 0 {
        text = format!("{text}; then throttled in {}", plural(resize.throttled_periods, "period", "periods"));
    }
    text
}

fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn caller(caller: Option<&Caller>) -> String {
    let Some(Caller { program, pid, uid, trace_id: _, task }) = caller else { return "unknown".to_owned() };
    if !task.is_empty() {
        return format!("crisp ({task})");
    }
    let mut text = if program.is_empty() { "unknown".to_owned() } else { program.clone() };
    if *pid != 0 {
        text = format!("{text}[{pid}]");
    }
    match uid {
        Some(uid) if *uid != 0 => format!("{text} uid {uid}"),
        _ => text,
    }
}

fn time(ns: u64) -> String {
    let time = DateTime::from_timestamp_nanos(i64::try_from(ns).unwrap_or(i64::MAX));
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

fn optional(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

fn json(resize: &Resize) -> Value {
    let caller = resize.caller.clone().unwrap_or_default();
    let container = optional(&resize.container_id).map(|id| json!({ "id": id, "name": resize.container_name }));
    json!({
        "time": time(resize.began_ns),
        "began_ns": resize.began_ns,
        "duration_us": resize.duration_us,
        "pod": {
            "id": resize.pod_id, "namespace": resize.pod_namespace, "name": resize.pod_name, "uid": resize.pod_uid,
        },
        "container": container,
        "caller": {
            "program": optional(&caller.program),
            "pid": Some(caller.pid).filter(|pid| *pid != 0),
            "uid": caller.uid,
            "trace_id": optional(&caller.trace_id),
            "task": optional(&caller.task),
        },
        "resources": resize.resources.iter().map(|change| {
            json!({ "resource": change.resource, "old": change.old, "new": change.new })
        }).collect::<Vec<_>>(),
        "files": resize.files.iter().map(|change| {
            json!({ "file": change.file, "old": change.old, "new": change.new })
        }).collect::<Vec<_>>(),
        "outcome": resize.outcome,
        "reason": optional(&resize.reason),
        "error": optional(&resize.error),
        "reclaimed_bytes": resize.reclaimed_bytes,
        "drift": resize.drift.iter().map(|write| {
            json!({ "time": time(write.at_ns), "file": write.file, "found": optional(&write.found) })
        }).collect::<Vec<_>>(),
        "oom_kills": resize.oom_kills,
        "throttled_periods": resize.throttled_periods,
    })
}

#[cfg(test)]
mod tests {
    use cri_api::admin::ForeignWrite;

    use super::*;

    fn resize() -> Resize {
        let change = |resource: &str, old: &str, new: &str| ResourceChange {
            resource: resource.to_owned(),
            old: old.to_owned(),
            new: new.to_owned(),
        };
        Resize {
            began_ns: 1_700_000_000_123_456_789,
            pod_namespace: "prod".to_owned(),
            pod_name: "shop".to_owned(),
            container_name: "web".to_owned(),
            container_id: "abc".to_owned(),
            caller: Some(Caller { program: "kubelet".to_owned(), pid: 812, uid: Some(0), ..Caller::default() }),
            resources: vec![change("memory", "64Mi", "256Mi"), change("cpu", "250m", "500m")],
            outcome: "applied".to_owned(),
            ..Resize::default()
        }
    }

    fn printed(json: bool, resizes: &[Resize]) -> String {
        let mut out = Vec::new();
        Printer::new(json).print(&mut out, resizes).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn resizes_are_a_table() {
        let refused = Resize {
            outcome: "refused".to_owned(),
            reason: "below_usage".to_owned(),
            resources: Vec::new(),
            container_id: String::new(),
            container_name: String::new(),
            reclaimed_bytes: Some(3 << 20),
            oom_kills: 1,
            throttled_periods: 20,
            drift: vec![ForeignWrite { at_ns: 1, file: "cpu.max".to_owned(), found: "2 3".to_owned() }],
            ..resize()
        };
        let expected = "\
TIME                      POD            CALLER        CHANGE                                OUTCOME
2023-11-14T22:13:20.123Z  prod/shop/web  kubelet[812]  memory 64Mi → 256Mi, cpu 250m → 500m  applied
2023-11-14T22:13:20.123Z  prod/shop      kubelet[812]  -                                     \
refused (below usage), reclaimed 3.0 MiB; then cpu.max changed outside crisp to 2 3; then 1 process OOM-killed; \
then throttled in 20 periods
";
        assert_eq!(printed(false, &[resize(), refused]), expected);
        assert_eq!(printed(false, &[]).lines().count(), 1);
    }

    #[test]
    fn json_is_an_object_per_line() {
        let text = printed(true, &[resize(), resize()]);
        assert_eq!(text.lines().count(), 2);
        let value: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(value["time"], "2023-11-14T22:13:20.123Z");
        assert_eq!(value["resources"][0], json!({ "resource": "memory", "old": "64Mi", "new": "256Mi" }));
        assert_eq!(value["caller"]["pid"], 812);
        assert_eq!((&value["reason"], &value["reclaimed_bytes"]), (&Value::Null, &Value::Null));
    }
}
