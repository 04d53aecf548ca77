//! Debian's Prometheus with crisp: rules, dashboard and the endpoint for a Prometheus on another node.
//!
//! The network namespace of the test is the node; its address is not loopback, so it has TLS and a token.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use cri_api::v1;
use serde_json::{Value, json};

use crate::support::client::Pod;
use crate::support::env::{TestEnv, write_secret};
use crate::support::harness::{Daemon, scrape, seconds, wait_for};
use crate::support::kernel_state;
use crate::update::{file, limits};

const ADDRESS: &str = "192.0.2.1:9099";
const TOKEN: &str = "a-token-of-the-test-0123456789";
/// How Grafana replaces the variables of the dashboard.
const VARIABLES: [(&str, &str); 3] = [("$__rate_interval", "1m"), ("$instance", ".*"), ("$job", "crisp")];

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/prometheus").canonicalize().unwrap()
}

fn promtool(arguments: &[&str]) -> Output {
    Command::new("promtool").args(arguments).current_dir(examples()).output().expect("hack/install installs promtool")
}

/// A Prometheus in the network namespace of a daemon; ends when dropped.
struct Prometheus<'a> {
    env: &'a TestEnv,
    process: Child,
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl<'a> Prometheus<'a> {
    /// Starts it with the shipped configuration, rules included.
    fn start(env: &'a TestEnv) -> Self {
        let (dir, data) = (env.dir().join("prometheus"), env.dir().join("prometheus/data"));
        fs::create_dir(&dir).unwrap();
        for name in ["crisp.rules.yml", "prometheus.yml"] {
            let text = fs::read_to_string(examples().join(name)).unwrap();
            let text = text
                .replace("node1.example:9099", ADDRESS)
                .replace("/etc/prometheus/crisp-ca.pem", env.dir().join("cert.pem").to_str().unwrap())
                .replace("/etc/prometheus/crisp-token", env.dir().join("token").to_str().unwrap())
                .replace("node1.example", "crisp.test")
                .replace("15s", "1s");
            fs::write(dir.join(name), text).unwrap();
        }
        let option = |name: &str, value: &Path| format!("--{name}={}", value.display());
        let log = fs::File::create(dir.join("log")).unwrap();
        let mut command = env.host().command("prometheus");
        command.arg(option("config.file", &dir.join("prometheus.yml"))).arg(option("storage.tsdb.path", &data));
        command.args(["--web.listen-address=127.0.0.1:9090", "--log.level=warn"]).stdin(Stdio::null());
        let process = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Self { env, process }
    }

    /// Returns the samples of a query that are numbers.
    fn query(&self, query: &str) -> Vec<f64> {
        let mut command = self.env.host().command("promtool");
        command.args(["query", "instant", "-o", "json", "http://127.0.0.1:9090", query]);
        let Output { status, stdout, stderr } = command.output().unwrap();
        let refused = String::from_utf8_lossy(&stderr);
        // It is not ready yet.
        if refused.contains("connection refused") || refused.contains("503") {
            return Vec::new();
        }
        assert!(status.success(), "{query}: {refused}");
        let samples: Value = serde_json::from_slice(&stdout).unwrap();
        let values = samples.as_array().unwrap().iter().map(|sample| sample["value"][1].as_str().unwrap());
        values.map(|value| value.parse::<f64>().unwrap()).filter(|value| value.is_finite()).collect()
    }
}

/// A daemon with a CNI network, and metrics on an address that is not loopback.
fn node() -> Daemon {
    let env = TestEnv::connected("");
    let certified = rcgen::generate_simple_self_signed(["crisp.test".to_owned()]).unwrap();
    fs::write(env.dir().join("cert.pem"), certified.cert.pem()).unwrap();
    write_secret(&env.dir().join("key.pem"), &certified.signing_key.serialize_pem());
    write_secret(&env.dir().join("token"), &format!("{TOKEN}\n"));
    let path = |name: &str| env.dir().join(name);
    let metrics = format!(
        "[metrics]\nlisten = {ADDRESS:?}\ntls_cert = {:?}\ntls_key = {:?}\ntoken_file = {:?}\n",
        path("cert.pem"),
        path("key.pem"),
        path("token")
    );
    let settings = fs::read_to_string(env.config()).unwrap() + &metrics;
    fs::write(env.config(), settings).unwrap();
    let ipam = json!({ "type": "host-local", "dataDir": path("ipam"), "ranges": [[{ "subnet": "10.88.0.0/24" }]] });
    let plugin = json!({ "type": "ptp", "ipMasq": false, "ipam": ipam });
    let network = json!({ "cniVersion": "1.0.0", "name": "net", "plugins": [plugin] });
    fs::write(env.cni().join("10-net.conflist"), network.to_string()).unwrap();
    env.host().script("ip address add 192.0.2.1/32 dev lo");
    Daemon::on(env)
}

/// Does once what each query needs.
fn drive(daemon: &Daemon, pod: &Pod, container: &str, round: i64) {
    let client = daemon.client();
    client.update(container, limits(600 + round, 96 + round)).unwrap();
    client.update(container, limits(300 + round, 64 + round)).unwrap();
    let impossible = v1::LinuxContainerResources { cpuset_cpus: "4000".into(), ..limits(300, 64) };
    client.update(container, impossible).unwrap_err();
    client.script(pod, &format!("fails{round}"), "exit 7");
    client.exec_script(container, "true");
    daemon.run_pod(&format!("extra{round}"));
    client.pull("127.0.0.1:9/none/x:1").unwrap_err();
}

/// Returns the queries of the dashboard with the titles of their panels.
fn dashboard() -> Vec<(String, String)> {
    let text = fs::read_to_string(examples().join("crisp-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap().to_owned();
            let query = VARIABLES.iter().fold(query, |query, (name, value)| query.replace(name, value));
            assert!(!query.contains('$'), "an unknown variable: {query}");
            queries.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    queries
}

#[test]
fn every_query_of_the_dashboard_has_an_answer_over_tls_with_a_token() {
    let daemon = node();
    let client = daemon.client();
    let prometheus = Prometheus::start(&daemon.env);
    let pod = daemon.run_pod("shop");
    let container = client.run_limited(&pod, "web", limits(500, 80));
    drive(&daemon, &pod, &container, 1);
    wait_for("a first scrape", seconds(20), || prometheus.query("up{job=\"crisp\"} == 1").pop());
    drive(&daemon, &pod, &container, 2);
    let (name, foreign) =
        if kernel_state::is_v2() { ("cpu.max", "20000 100000") } else { ("cpu.cfs_quota_us", "20000") };
    fs::write(file(&daemon, &container, name), foreign).unwrap();
    client.status(&container);

    let queries = dashboard();
    assert!(queries.len() > 25, "{queries:?}");
    for (title, query) in queries {
        wait_for(&format!("{title}: {query}"), seconds(20), || prometheus.query(&query).pop());
    }
    let pending = "ALERTS{alertname=\"CrispLimitsDrift\",namespace=\"tests\",pod=\"shop\",container=\"web\"}";
    wait_for("an alert", seconds(20), || prometheus.query(pending).pop());
    // Each sample of a family has the same labels, so that no query drops some.
    let resizes = "count(crisp_resizes_total) - count(crisp_resizes_total{reason!=\"\",outcome!=\"\"})";
    assert_eq!(prometheus.query(resizes), [0.0]);
}

#[test]
fn promtool_accepts_the_alert_rules_and_each_fires() {
    for arguments in [&["check", "rules", "crisp.rules.yml"][..], &["test", "rules", "crisp.rules.test.yml"]] {
        let Output { status, stdout, stderr } = promtool(arguments);
        let text = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        assert!(status.success() && text.contains("SUCCESS"), "{arguments:?}: {text}");
    }
}

#[test]
fn promtool_finds_nothing_to_complain_about_in_the_metrics() {
    let daemon = Daemon::on(TestEnv::with_metrics(""));
    let pod = daemon.run_pod("pod");
    daemon.client().run_idle(&pod, "main");
    let mut lint = Command::new("promtool");
    lint.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut lint = lint.spawn().expect("hack/install installs promtool");
    lint.stdin.take().unwrap().write_all(scrape(&daemon.env.metrics()).as_bytes()).unwrap();
    let Output { status, stdout, stderr } = lint.wait_with_output().unwrap();
    assert!(status.success(), "{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
}

#[test]
fn every_alert_has_a_runbook_and_every_metric_in_rules_and_dashboard_exists() {
    let read = |path: PathBuf| fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let docs = examples().join("../../docs");
    let (rules, runbook) = (read(examples().join("crisp.rules.yml")), read(docs.join("alerts.md")));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    let headings: Vec<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## Crisp")).collect();
    assert_eq!(headings, alerts.iter().map(|alert| alert.strip_prefix("Crisp").unwrap()).collect::<Vec<_>>());
    for alert in alerts {
        let anchor = format!("runbook: docs/alerts.md#{}\n", alert.to_lowercase());
        assert!(rules.contains(&anchor), "no {anchor}");
    }
    let page = read(docs.join("observability.md"));
    let queries: String = dashboard().into_iter().map(|(_, query)| query + "\n").collect();
    let words = [rules, queries, runbook].concat();
    let words = words.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned);
    let metrics: BTreeSet<_> =
        words.filter(|word| ["crisp_", "process_"].iter().any(|p| word.starts_with(p))).collect();
    for metric in metrics {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| metric.strip_suffix(suffix));
        let known = |name: &str| page.contains(&format!("| `{name}` |"));
        assert!(known(&metric) || family.is_some_and(known), "no metric {metric}");
    }
}
