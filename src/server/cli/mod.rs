//! `crisp image`: what an operator does with images, whether a daemon runs or not.
//!
//! A store that a daemon has open is worked on through that daemon, over its socket; a store that nobody has open is
//! opened here. Both ways do the same: `daemon` asks, `offline` does, and `image` does not care which. What is asked for
//! goes to stdout, everything else to stderr.

mod daemon;
mod image;
mod interrupt;
mod meter;
mod offline;
mod output;
mod settings;
mod show;

pub use image::{ImageArgs, ImageError, image};
pub use settings::Settings;
