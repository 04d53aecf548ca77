//! Combines manifest and config into the list of layers that an image needs.

use crate::config::ConfigBlob;
use crate::layer::unpack::Blob;
use crate::manifest::{Descriptor, ManifestError, check_layer_count};
use crate::store::commit::LayerPlan;

/// Pairs the layers' blobs, lowest first, with the config's diff ids; `registry` is the one to send
/// them.
pub(crate) fn plan<'a>(
    registry: Option<&str>,
    layers: impl ExactSizeIterator<Item = Option<&'a Descriptor>>,
    config: &ConfigBlob,
) -> Result<Vec<LayerPlan>, ManifestError> {
    let diff_ids = config.diff_ids.len();
    if layers.len() != diff_ids {
        return Err(ManifestError::LayerCount { layers: layers.len(), diff_ids });
    }
    check_layer_count(diff_ids)?;
    let chain = config.chain();
    let parents = std::iter::once(None).chain(chain.iter().cloned().map(Some));
    let plans = chain.iter().zip(&config.diff_ids).zip(parents).zip(layers);
    let plans = plans.map(|(((chain_id, diff_id), parent), layer)| LayerPlan {
        chain_id: chain_id.clone(),
        diff_id: diff_id.clone(),
        parent,
        blob: layer.map(|layer| Blob { digest: layer.digest.clone(), size: layer.size }),
        registry: registry.map(str::to_owned),
    });
    Ok(plans.collect())
}
