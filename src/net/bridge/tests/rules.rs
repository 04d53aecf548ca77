//! Compares the nftables tables with the output of nft.

use model::Protocol;

use super::support::*;

/// The output of nft for the same rules written by hand.
const WANTED: &str = r#"
table inet crisp {
    map address_ports4 {
        type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
        elements = { 127.0.0.1 . udp . 53 : 10.213.0.2 . 5353 }
    }
    map address_ports6 {
        type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service
        elements = { 2001:db8::1 . sctp . 9 : fd00:c715::2 . 9 }
    }
    map ports4 {
        type inet_proto . inet_service : ipv4_addr . inet_service
        elements = { tcp . 8080 : 10.213.0.2 . 80 }
    }
    map ports6 {
        type inet_proto . inet_service : ipv6_addr . inet_service
        elements = { tcp . 8080 : fd00:c715::2 . 80 }
    }
    set pods4 {
        type ipv4_addr
        elements = { 10.213.0.2 }
    }
    set pods6 {
        type ipv6_addr
        elements = { fd00:c715::2,
                     fe80::858:aff:fed5:2 }
    }
    chain guard {
        type filter hook prerouting priority raw; policy accept;
        iifname "crisp0" ip saddr 127.0.0.0/8 drop
        iifname "crisp0" ip daddr 127.0.0.0/8 drop
    }
    chain prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @address_ports4
        fib daddr type local dnat ip6 to ip6 daddr . meta l4proto . th dport map @address_ports6
        meta nfproto ipv4 fib daddr type local dnat ip to meta l4proto . th dport map @ports4
        meta nfproto ipv6 fib daddr type local dnat ip6 to meta l4proto . th dport map @ports6
    }
    chain output {
        type nat hook output priority -100; policy accept;
        fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @address_ports4
        fib daddr type local dnat ip6 to ip6 daddr . meta l4proto . th dport map @address_ports6
        meta nfproto ipv4 fib daddr type local dnat ip to meta l4proto . th dport map @ports4
        ip6 daddr != ::1 fib daddr type local dnat ip6 to meta l4proto . th dport map @ports6
    }
    chain unused {
        type filter hook postrouting priority filter; policy accept;
        oifname "crisp0" ip daddr 10.208.0.0/13 ip daddr != @pods4 drop
        oifname "crisp0" ip6 daddr fd00:c715::/61 ip6 daddr != @pods6 drop
        oifname "crisp0" ip6 daddr fe80::/10 ip6 daddr != @pods6 drop
        oifname "crisp0" icmp type redirect drop
        oifname "crisp0" icmpv6 type nd-redirect drop
    }
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        oifname "crisp0" ip saddr 127.0.0.0/8 masquerade
        oifname "crisp0" ct status dnat ip saddr 10.208.0.0/13 masquerade
        oifname "crisp0" ct status dnat ip6 saddr fd00:c715::/61 masquerade
        oifname != "crisp0" ip saddr 10.208.0.0/13 masquerade
        oifname != "crisp0" ip6 saddr fd00:c715::/61 masquerade
    }
}
"#;

/// The output for the packets of pods, without a match that this nft cannot express: the target of
/// a neighbour advertisement.
const WANTED_OF_BRIDGE: &str = r#"
table bridge crisp {
    set links {
        type ifname
    }
    set sources4 {
        type ifname . ether_addr . ipv4_addr
    }
    set sources6 {
        type ifname . ether_addr . ipv6_addr
    }
    chain prerouting {
        type filter hook prerouting priority -300; policy accept;
        iifname != @links accept
        ether type ip iifname . ether saddr . ip saddr @sources4 accept
        ether type arp arp htype 1 arp ptype 0x0800 arp hlen 6 arp plen 4 iifname . ether saddr . arp saddr ip @sources4 iifname . arp saddr ether . arp saddr ip @sources4 accept
        ether type ip6 iifname . ether saddr . ip6 saddr != @sources6 drop
        ether type ip6 icmpv6 type nd-router-solicit drop
        ether type ip6 icmpv6 type nd-router-advert drop
        ether type ip6 icmpv6 type nd-redirect drop
        ether type ip6 accept
        drop
    }
}
"#;

#[test]
#[ignore = "needs root"]
fn nft_lists_the_same_rules_as_those_written_by_hand() {
    let ours = on_host(|_| {
        // Prefixes that are not whole bytes have another comparison.
        let bridge = bridge(&["10.208.0.0/13", "fd00:c715::/61"]);
        bridge
            .restore(
                "pod",
                &["10.213.0.2".parse().unwrap(), "fd00:c715::2".parse().unwrap()],
                &[
                    port(Protocol::Tcp, "", 8080, 80),
                    port(Protocol::Udp, "127.0.0.1", 53, 5353),
                    port(Protocol::Sctp, HOST6, 9, 9),
                ],
            )
            .unwrap();
        bridge.set_up().unwrap();
        sh("nft list table inet crisp")
    });
    let by_hand = on_host(|_| sh(&format!("nft -f - <<'E'\n{WANTED}\nE\nnft list table inet crisp")));
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&ours), words(WANTED), "{ours}");
    assert_eq!(ours, by_hand);
}

#[test]
#[ignore = "needs root"]
fn the_kernel_has_the_same_expressions_as_from_nft() {
    // `nft --debug=netlink list` shows the kernel's expressions, register by register.
    let shown = |family: &str, make: &(dyn Fn() + Sync)| {
        on_host(|_| {
            make();
            sh(&format!(
                "nft --debug=netlink list table {family} crisp 2>&1 | grep '\\[' | sed 's/set __[a-z0-9]*/set/'"
            ))
        })
    };
    let ours = || drop(dual().set_up().unwrap());
    let by_hand = |text: &str| {
        let text = text.replace("10.208.0.0/13", "10.213.0.0/16").replace("fd00:c715::/61", "fd00:c715::/64");
        // The family comes first; nft does not show it.
        let text = text.replace(
            "    fib daddr type local dnat ip to ip daddr",
            "    meta nfproto ipv4 fib daddr type local dnat ip to ip daddr",
        );
        let text = text.replace(
            "    fib daddr type local dnat ip6 to ip6 daddr",
            "    meta nfproto ipv6 fib daddr type local dnat ip6 to ip6 daddr",
        );
        let no_elements: String =
            text.lines().filter(|l| !l.contains("elements") && !l.contains("fe80::858")).collect::<Vec<_>>().join("\n");
        sh(&format!("nft -f - <<'E'\n{no_elements}\nE"));
    };
    let ip = shown("inet", &ours);
    assert!(ip.lines().count() > 50, "{ip}");
    assert_eq!(ip, shown("inet", &|| by_hand(WANTED)));
    let frames = shown("bridge", &ours);
    let advertisement = "  [ payload load 2b @ link header + 12 => reg 1 ]
  [ cmp eq reg 1 0x0000dd86 ]
  [ meta load l4proto => reg 1 ]
  [ cmp eq reg 1 0x0000003a ]
  [ payload load 1b @ transport header + 0 => reg 1 ]
  [ cmp eq reg 1 0x00000088 ]
  [ meta load iifname => reg 1 ]
  [ payload load 6b @ link header + 6 => reg 2 ]
  [ payload load 16b @ transport header + 8 => reg 14 ]
  [ lookup reg 1 set sources6 0x1 ]
  [ immediate reg 0 drop ]
";
    assert!(frames.contains(advertisement), "{frames}");
    assert_eq!(frames.replace(advertisement, ""), shown("bridge", &|| by_hand(WANTED_OF_BRIDGE)));
}

#[test]
#[ignore = "needs root"]
fn two_networks_can_coexist_on_a_host() {
    on_host(|env| {
        let one = dual();
        let settings = crate::bridge::Settings {
            bridge: "other".to_owned(),
            pools: vec!["10.99.0.0/24".parse().unwrap()],
            table: "other".to_owned(),
            mtu: Some(1400),
        };
        let two = crate::bridge::Bridge::open(settings).unwrap();
        let a = attach(&one, 1, &[port(Protocol::Tcp, "", 8080, 80)]);
        let b = attach(&two, 1, &[port(Protocol::Tcp, "", 8081, 80)]);
        two.gc().unwrap();
        one.gc().unwrap();
        tcp(&a.netns, a.at(80), &env.outside, address(HOST4, 8080)).unwrap();
        tcp(&b.netns, b.at(80), &env.outside, address(HOST4, 8081)).unwrap();
        tcp(&b.netns, b.at(80), &a.netns, b.at(80)).unwrap();
        assert!(b.netns.sh("ip link show eth0").contains("mtu 1400"));
        one.detach(&a.pod.id).unwrap().wait();
        tcp(&b.netns, b.at(80), &env.outside, address(HOST4, 8081)).unwrap();
    });
}
