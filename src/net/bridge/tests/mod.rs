//! The bridge on the real kernel, in network namespaces that a test creates for the host and the
//! outside. The machine's network, rules and sysctls are not changed.

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
