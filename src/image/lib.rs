//! x
#![forbid(unsafe_code)]
#![allow(dead_code, reason = "wip")]
mod archive;
mod config;
mod digest;
mod disk;
mod manifest;
mod reference;
mod root;
mod sparse;
mod untar;
