//! The network on the real kernel, on a host that the test makes: a network namespace of its own, with an outside behind
//! it. The machine's own network, rules and settings are never touched.

mod ground;
mod life;
mod measure;
mod ports;
mod rules;
mod traffic;
mod upkeep;
