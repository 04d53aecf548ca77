//! The daemon as a whole: start, bad requests, reload, health, events, metrics, traces, secrets.

mod events;
mod h2_authority;
mod handlers;
mod health;
mod lists;
mod logs;
mod metrics;
mod pod_resources;
mod prometheus;
mod reload;
mod requests;
mod secrets;
mod soak;
mod startup;
mod tracing;
