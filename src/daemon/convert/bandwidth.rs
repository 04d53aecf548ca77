//! The annotations of Kubernetes that limit the bandwidth of a pod.

use std::collections::BTreeMap;

use model::{Bandwidth, BitRate, Quantity};

use super::pod_resources::entry;
use super::{FieldPath, InvalidField};

const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";

pub(super) fn of_annotations(
    at: FieldPath<'_>,
    annotations: &BTreeMap<String, String>,
) -> Result<Bandwidth, InvalidField> {
    let rate = |name: &str| annotations.get(name).map(|text| bit_rate(at, name, text)).transpose();
    Ok(Bandwidth { ingress: rate(INGRESS)?, egress: rate(EGRESS)? })
}

fn bit_rate(at: FieldPath<'_>, name: &str, text: &str) -> Result<BitRate, InvalidField> {
    let field = entry("annotations", name);
    let at = at.at(&field);
    let quantity: Quantity = text.parse().map_err(|problem| at.invalid(problem))?;
    match u64::try_from(quantity.nanos() / 1_000_000_000) {
        Ok(bits @ 1_000..=1_000_000_000_000_000) => Ok(BitRate(bits)),
        Ok(_) | Err(_) => Err(at.invalid(format_args!("bandwidth {text:?} is not between 1k and 1P bits per second"))),
    }
}
