use super::*;
use crate::devices::{allow_all, default_rules};

const NEW: u32 = 255;

fn values(pairs: &[(&'static str, &str)]) -> Values {
    pairs
        .iter()
        .map(|(file, value)| (Knob::named(file), *value))
        .map(|(knob, value)| {
            let value = knob.value(value);
            (knob, value)
        })
        .collect()
}

fn properties(version: Version, pairs: &[(&'static str, &str)]) -> Vec<(&'static str, Value)> {
    let changed = values(pairs);
    let properties = of(version, NEW, &Values::new(), &changed).unwrap();
    properties.into_iter().map(|Property { name, value }| (name, value)).collect()
}

#[test]
fn limits_are_properties_and_unlimited_is_infinity() {
    for (file, property) in [
        ("memory.max", "MemoryMax"),
        ("memory.high", "MemoryHigh"),
        ("memory.low", "MemoryLow"),
        ("memory.min", "MemoryMin"),
        ("memory.swap.max", "MemorySwapMax"),
        ("memory.zswap.max", "MemoryZSwapMax"),
        ("pids.max", "TasksMax"),
    ] {
        assert_eq!(properties(Version::V2, &[(file, "8192\n")]), [(property, Value::Number(8192))]);
        assert_eq!(properties(Version::V2, &[(file, "max")]), [(property, Value::Number(u64::MAX))]);
    }
}

#[test]
fn zero_swap_is_a_property_and_too_small_values_are_raised_to_the_minimum() {
    assert_eq!(properties(Version::V2, &[("memory.swap.max", "0")]), [("MemorySwapMax", Value::Number(0))]);
    assert_eq!(properties(Version::V2, &[("memory.min", "0")]), [("MemoryMin", Value::Number(0))]);
    assert_eq!(properties(Version::V2, &[("memory.max", "0")]), [("MemoryMax", Value::Number(1))]);
    assert_eq!(properties(Version::V2, &[("pids.max", "0")]), [("TasksMax", Value::Number(1))]);
}

#[test]
fn a_quota_is_converted_to_one_second_and_rounded_up() {
    for (file, second, period) in [
        ("25000 100000", 250_000, 100_000),
        ("12345 100000", 130_000, 100_000),
        ("1000 100000", 10_000, 100_000),
        ("1001 100000", 20_000, 100_000),
        ("15000 10000", 1_500_000, 10_000),
        ("max 100000", u64::MAX, 100_000),
        ("50000", 500_000, 100_000),
    ] {
        let expected = [("CPUQuotaPerSecUSec", Value::Number(second)), ("CPUQuotaPeriodUSec", Value::Number(period))];
        assert_eq!(properties(Version::V2, &[("cpu.max", file)]), expected, "{file}");
    }
}

#[test]
fn shares_or_weight_alone_do_not_set_the_quota() {
    assert_eq!(properties(Version::V2, &[("cpu.weight", "59")]), [("CPUWeight", Value::Number(59))]);
    assert_eq!(properties(Version::V1, &[("cpu.shares", "512")]), [("CPUShares", Value::Number(512))]);
}

#[test]
fn on_v1_quota_or_period_alone_is_completed_from_the_active_value() {
    let now = values(&[("cpu.cfs_quota_us", "-1"), ("cpu.cfs_period_us", "50000")]);
    let quota = of(Version::V1, NEW, &now, &values(&[("cpu.cfs_quota_us", "25000")])).unwrap();
    assert_eq!(quota[0].value, Value::Number(500_000));
    let period = of(Version::V1, NEW, &now, &values(&[("cpu.cfs_period_us", "100000")])).unwrap();
    assert_eq!((&period[0].value, &period[1].value), (&Value::Number(u64::MAX), &Value::Number(100_000)));
}

#[test]
fn v1_has_its_own_properties_and_unsupported_files_have_none() {
    let limits = [("memory.limit_in_bytes", "9223372036854771712"), ("pids.max", "10")];
    let expected = [("MemoryLimit", Value::Number(u64::MAX)), ("TasksMax", Value::Number(10))];
    assert_eq!(properties(Version::V1, &limits), expected);
    assert_eq!(properties(Version::V1, &[("memory.memsw.limit_in_bytes", "1"), ("cpuset.cpus", "0")]), []);
    assert_eq!(
        properties(Version::V2, &[("hugetlb.2MB.max", "0"), ("memory.oom.group", "1"), ("io.max", "8:0 rbps=1")]),
        []
    );
}

#[test]
fn cpusets_are_bit_masks() {
    assert_eq!(properties(Version::V2, &[("cpuset.cpus", "0-2,9")]), [("AllowedCPUs", Value::Mask(vec![0b111, 0b10]))]);
    assert_eq!(properties(Version::V2, &[("cpuset.mems", "8")]), [("AllowedMemoryNodes", Value::Mask(vec![0, 1]))]);
    assert_eq!(properties(Version::V2, &[("cpuset.cpus", "\n")]), [("AllowedCPUs", Value::Mask(vec![]))]);
}

#[test]
fn a_default_weight_is_a_property_and_a_weight_of_one_device_is_not() {
    assert_eq!(properties(Version::V2, &[("io.weight", "default 200")]), [("IOWeight", Value::Number(200))]);
    assert_eq!(properties(Version::V2, &[("io.weight", "200")]), [("IOWeight", Value::Number(200))]);
    assert_eq!(properties(Version::V2, &[("io.weight", "8:0 200")]), []);
}

#[test]
fn an_old_systemd_gets_only_properties_that_it_supports() {
    let changed = values(&[("cpuset.cpus", "0"), ("cpu.max", "5000 10000"), ("memory.max", "4096")]);
    let properties = of(Version::V2, 239, &Values::new(), &changed).unwrap();
    assert_eq!(properties.iter().map(|p| p.name).collect::<Vec<_>>(), ["MemoryMax", "CPUQuotaPerSecUSec"]);
}

#[test]
fn invalid_values_have_no_property() {
    for (file, value) in [
        ("memory.max", "much"),
        ("cpu.max", "max often"),
        ("cpu.max", ""),
        ("cpu.weight", "heavy"),
        ("cpuset.cpus", "0-"),
    ] {
        let refusal = of(Version::V2, NEW, &Values::new(), &values(&[(file, value)])).unwrap_err();
        assert_eq!(refusal.knob.file(), file, "{value:?}");
    }
}

#[test]
fn every_file_with_a_property_is_restored_after_a_reload() {
    let names = |version| not_representable(version).iter().map(|knob| knob.file().to_owned()).collect::<Vec<_>>();
    for file in ["memory.high", "cpu.max", "cpu.weight", "cpuset.cpus", "pids.max"] {
        assert!(names(Version::V2).iter().any(|name| name == file), "{file}");
    }
    assert!(names(Version::V1).iter().any(|name| name == "cpu.cfs_period_us"));
}

#[test]
fn the_rules_of_a_container_are_a_strict_list() {
    let rules = default_rules();
    let properties = devices(&Policy::new(&rules).unwrap()).unwrap();
    assert_eq!(properties[0].value, Value::Text("strict".into()));
    assert_eq!(properties[1].value, Value::Pairs(vec![]));
    let Value::Pairs(pairs) = &properties[2].value else { panic!("no list") };
    let pair = |device: &str, access: &str| (device.to_owned(), access.to_owned());
    for wanted in [pair("char-*", "m"), pair("block-*", "m"), pair("/dev/char/1:3", "rwm"), pair("char-136", "rwm")] {
        assert!(pairs.contains(&wanted), "{wanted:?} in {pairs:?}");
    }
    assert_eq!(pairs.len(), rules.len());
}

#[test]
fn all_devices_are_two_rules_and_inexpressible_rules_are_rejected() {
    let all = devices(&Policy::new(&allow_all()).unwrap()).unwrap();
    let pairs = ["char-*", "block-*"].map(|all| (all.to_owned(), "rwm".to_owned()));
    assert_eq!((&all[0].value, &all[2].value), (&Value::Text("strict".into()), &Value::Pairs(pairs.into())));
    let any_zero = DeviceRule::allow(DeviceKind::Block, None, Some(0), Access::READ);
    assert_eq!(devices(&Policy::new(&[any_zero]).unwrap()), None);
    let mut but_one = allow_all();
    but_one.push(DeviceRule {
        verdict: Verdict::Deny,
        ..DeviceRule::allow(DeviceKind::Char, Some(1), Some(1), Access::ALL)
    });
    assert_eq!(devices(&Policy::new(&but_one).unwrap()), None);
}

#[test]
fn the_value_after_a_reload_is_known() {
    let after = |file, wrote, period: Option<&str>| {
        after_reload(&Knob::named(file), wrote, period.map(|period| Knob::CFS_PERIOD.value(period)).as_ref())
    };
    assert_eq!(after("cpu.max", "12300 100000", None).unwrap(), "13000 100000");
    assert_eq!(after("cpu.max", "25000 100000", None).unwrap(), "25000 100000");
    assert_eq!(after("cpu.max", "12345", None).unwrap(), "13000 100000");
    assert_eq!(after("cpu.max", "max 100000", None), None);
    assert_eq!(after("cpu.cfs_quota_us", "1230", Some("10000")).unwrap(), "1300");
    assert_eq!(after("cpu.cfs_quota_us", "-1", Some("10000")), None);
    assert_eq!(after("memory.oom.group", "1", None).unwrap(), "0");
    assert_eq!(after("memory.max", "4096", None), None);
}
