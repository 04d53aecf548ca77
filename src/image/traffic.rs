//! What pulls have moved and are moving, for whoever watches.

use std::time::Duration;

/// All pulls since the store was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Pulls that ended with an image.
    pub succeeded: u64,
    /// Pulls that ended without one, or were abandoned.
    pub failed: u64,
    /// Bytes of blobs that came over the network, also those of pulls that failed.
    pub bytes: u64,
    /// Layers that were unpacked from the network.
    pub layers: u64,
    /// Requests that were tried again.
    pub retries: u64,
    /// Pulls that are under way.
    pub pulling: Vec<Pulling>,
}

/// A pull that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulling {
    /// The image's name in full.
    pub image: String,
    /// How long it has been going on.
    pub since: Duration,
    /// Bytes of layers that came so far.
    pub bytes: u64,
    /// Bytes of all layers that have to come; 0 while that is not known.
    pub total: u64,
    /// Layers that are ready.
    pub layers: usize,
    /// Layers of the image that were not here.
    pub layers_total: usize,
}
