use super::*;

fn resolved(change: impl FnOnce(&mut RawContainer, &mut BTreeMap<String, RawHandler>)) -> Result<Handlers, String> {
    let (mut container, mut named) = (RawContainer::default(), BTreeMap::new());
    change(&mut container, &mut named);
    resolve(&container, named).map_err(|invalid| invalid.to_string())
}

fn with(raw: RawHandler) -> Result<Handler, String> {
    resolved(|_, named| drop(named.insert("own".into(), raw))).map(|all| all.get("own").unwrap().clone())
}

#[test]
fn a_handler_has_its_own_settings_and_the_rest_from_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("profile.json");
    std::fs::write(&profile, r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#).unwrap();
    let all = resolved(|container, named| {
        container.shm_size = 1 << 20;
        container.privileged = false;
        container.rlimits.insert("core".into(), "0".into());
        named.insert("same".into(), RawHandler::default());
        let own = RawHandler {
            log_line_max: Some(300),
            log_rate_max: Some(0),
            shm_size: Some(8192),
            oom_score_adj: Some("require".into()),
            privileged: Some(true),
            seccomp: Some(profile.clone()),
            apparmor: Some("p".into()),
            selinux: Some("off".into()),
            capabilities: Some(vec!["cap_kill".into(), "CHOWN".into()]),
            rlimits: Some([("nofile".into(), "5:unlimited".into())].into()),
            resize_notices: Some(vec!["file".into()]),
            resize_hook: Some(vec!["/reload".into()]),
        };
        named.insert("own-1".into(), own);
    })
    .unwrap();
    assert_eq!(all.names().collect::<Vec<_>>(), ["", "crisp", "own-1", "same"]);
    assert!(std::ptr::eq(all.get("").unwrap(), all.get("crisp").unwrap()));
    assert_eq!(all.get("same"), all.get(""));
    let default = all.default_one();
    assert_eq!((default.shm_size, default.privileged, default.capabilities.len()), (1 << 20, false, 14));
    assert_eq!(default.rlimits, [Rlimit { kind: PosixRlimitType::RlimitCore, soft: 0, hard: 0 }]);
    let own = Handler {
        privileged: true,
        seccomp: Some(profile),
        apparmor: Some("p".into()),
        selinux: false,
        capabilities: ["KILL", "CHOWN"].iter().map(|name| name.parse().unwrap()).collect(),
        rlimits: vec![Rlimit { kind: PosixRlimitType::RlimitNofile, soft: 5, hard: u64::MAX }],
        log_line_max: 300,
        log_rate_max: 0,
        shm_size: 8192,
        oom_score_adj: OomPolicy::Require,
        resize_notices: AllowedNotices::resolve("own-1", &["file".into()], vec!["/reload".into()]).unwrap(),
    };
    assert_eq!(all.get("own-1"), Some(&own));
}

#[test]
fn an_unknown_handler_is_refused_with_the_list_of_known_ones() {
    let all = Handlers::of(&["b", "a"]);
    assert!(all.for_field("").is_ok() && all.for_field("crisp").is_ok());
    let refused = all.for_field("c").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "runtime handler \"c\" not found: must be one of \"crisp\", \"a\", \"b\", or empty for \"crisp\""
    );
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

#[test]
fn invalid_settings_are_refused_by_section_and_key() {
    let rlimits = |name: &str, value: &str| {
        with(RawHandler { rlimits: Some([(name.into(), value.into())].into()), ..RawHandler::default() })
    };
    let cases = [
        ("handlers.own.log_rate_max:", with(RawHandler { log_rate_max: Some(1), ..Default::default() })),
        ("handlers.own.log_line_max:", with(RawHandler { log_line_max: Some(1), ..Default::default() })),
        ("handlers.own.shm_size:", with(RawHandler { shm_size: Some(1), ..Default::default() })),
        ("handlers.own.oom_score_adj:", with(RawHandler { oom_score_adj: Some("no".into()), ..Default::default() })),
        ("handlers.own.seccomp:", with(RawHandler { seccomp: Some("relative".into()), ..Default::default() })),
        ("handlers.own.seccomp:", with(RawHandler { seccomp: Some("/nonexistent/p".into()), ..Default::default() })),
        ("handlers.own.seccomp:", with(RawHandler { seccomp: Some("/proc/self/status".into()), ..Default::default() })),
        ("handlers.own.selinux:", with(RawHandler { selinux: Some("on".into()), ..Default::default() })),
        ("handlers.own.apparmor:", with(RawHandler { apparmor: Some("a b".into()), ..Default::default() })),
        (
            "handlers.own.capabilities:",
            with(RawHandler { capabilities: Some(vec!["FLY".into()]), ..Default::default() }),
        ),
        (
            "handlers.own.capabilities:",
            with(RawHandler { capabilities: Some(vec!["ALL".into()]), ..Default::default() }),
        ),
        ("handlers.own.rlimits.nofiles:", rlimits("nofiles", "1")),
        ("handlers.own.rlimits.NOFILE:", rlimits("NOFILE", "1")),
        ("handlers.own.rlimits.nofile:", rlimits("nofile", "many")),
        ("handlers.own.rlimits.nofile:", rlimits("nofile", "-1")),
        ("handlers.own.rlimits.nofile:", rlimits("nofile", "2:1")),
        ("handlers.own.rlimits.nofile:", rlimits("nofile", "unlimited:1")),
    ];
    for (start, outcome) in cases {
        let refused = outcome.unwrap_err();
        assert!(refused.starts_with(start), "{refused}");
    }
    for name in ["crisp", "", "Strict", "-a", "a-", "a.b", "a_b", &"x".repeat(64)] {
        let refused = resolved(|_, named| drop(named.insert(name.into(), RawHandler::default()))).unwrap_err();
        assert!(refused.starts_with(&format!("handlers.{name}: ")), "{refused}");
    }
}
