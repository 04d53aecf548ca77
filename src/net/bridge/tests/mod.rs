//! The network on the real kernel, on a host that the test makes: a network namespace of its own,
//! with an outside behind it. The machine's own network, rules and settings are never touched.

mod bench;
mod frames;
mod held_ports;
mod lifecycle;
mod ports;
mod recovery;
mod rules;
mod spoofing;
mod support;
mod traffic;
