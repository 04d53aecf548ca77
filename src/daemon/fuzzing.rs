//! Parsers of the files in the state directory, for the fuzzer in `tests/fuzz`. Not in released
//! binaries.

use model::{ContainerUpdate, Exit, PodUpdate};
use shim_protocol::LaunchConfig;

use crate::runtime::resize::journal::Journal;
use crate::store::record::parse;
use crate::store::{
    CONTAINER_FILE, CgroupIntent, ContainerIntent, ContainerRecord, POD_FILE, PodIntent, PodRecord, intent,
};

const ID: &str = "abababababababababababababababababababababababababababababababab";

/// Parses `data` as each file of a pod or container. A parsed value must survive being written and
/// read.
pub fn records(data: &[u8]) {
    match parse::<PodRecord>(POD_FILE, ID, data) {
        Ok(record) => {
            let again = serde_json::to_vec(&record).map(|bytes| parse::<PodRecord>(POD_FILE, ID, &bytes));
            assert!(matches!(again, Ok(Ok(again)) if again == record), "a pod's record does not survive being written");
        }
        Err(why) => assert!(why.to_string().len() < data.len() + 500, "the reason is longer than the record"),
    }
    match parse::<ContainerRecord>(CONTAINER_FILE, ID, data) {
        Ok(record) => {
            let again = serde_json::to_vec(&record).map(|bytes| parse::<ContainerRecord>(CONTAINER_FILE, ID, &bytes));
            assert!(
                matches!(again, Ok(Ok(again)) if again == record),
                "a container's record does not survive being written"
            );
        }
        Err(why) => assert!(why.to_string().len() < data.len() + 500, "the reason is longer than the record"),
    }
    let raw = serde_json::from_slice(data).unwrap_or_default();
    let (mut pod, mut container): (PodIntent, ContainerIntent) = (intent::parse(data), intent::parse(data));
    pod.fill_from(&raw);
    container.fill_from(&raw);
    drop(intent::parse::<CgroupIntent>(data));
    drop(serde_json::from_slice::<Journal<PodUpdate>>(data));
    drop(serde_json::from_slice::<Journal<ContainerUpdate>>(data));
    drop(serde_json::from_slice::<Exit>(data));
    drop(serde_json::from_slice::<LaunchConfig>(data));
}
