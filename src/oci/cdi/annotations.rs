//! Reads CDI devices from a container's annotations.

use std::collections::{BTreeMap, HashSet};

use super::CdiError;

/// The prefix of annotations with CDI devices.
const PREFIX: &str = "cdi.k8s.io/";

/// Returns the devices in `asked` and then those in annotations, each once. If annotations are not
/// `honoured`, one with further devices is an error: without its device the container would fail
/// later for no visible reason.
pub fn devices(
    asked: &[String],
    annotations: &BTreeMap<String, String>,
    honoured: bool,
) -> Result<Vec<String>, CdiError> {
    let mut seen: HashSet<&str> = HashSet::new();
    let mut all: Vec<String> = asked.iter().filter(|name| seen.insert(name)).cloned().collect();
    for (annotation, value) in annotations.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
        for device in value.split(',') {
            let annotation = || annotation.clone();
            model::cdi_name::check_name(device)
                .map_err(|source| CdiError::Annotation { annotation: annotation(), source })?;
            if seen.insert(device) {
                if !honoured {
                    return Err(CdiError::AnnotationsOff { annotation: annotation(), device: device.to_owned() });
                }
                all.push(device.to_owned());
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use model::{ErrorClass, RequestField};

    use super::*;

    fn annotations(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn annotations_add_devices_once_in_the_order_of_annotation_names() {
        let asked = ["v.example/g=1", "v.example/g=1", "v.example/g=0"].map(str::to_owned);
        let found = annotations(&[
            ("cdi.k8s.io/b", "v.example/g=2,v.example/g=0,v.example/g=3"),
            ("cdi.k8s.io/a", "v.example/g=4"),
            ("other/x", "not a device"),
            ("cdi.k8s.io", "not a device"),
        ]);
        let all = devices(&asked, &found, true).unwrap();
        assert_eq!(all, [1, 0, 4, 2, 3].map(|n| format!("v.example/g={n}")));
    }

    #[test]
    fn an_annotation_that_is_not_honoured_must_not_add_devices() {
        let asked = ["v.example/g=1".to_owned()];
        let same = annotations(&[("cdi.k8s.io/a", "v.example/g=1")]);
        assert_eq!(devices(&asked, &same, false).unwrap(), asked);
        let more = annotations(&[("cdi.k8s.io/a", "v.example/g=1,v.example/g=2")]);
        let error = devices(&asked, &more, false).unwrap_err();
        assert_eq!(error.field(), Some(RequestField::Annotation("cdi.k8s.io/a".into())));
        let text = error.to_string();
        assert!(text.contains("v.example/g=2") && text.contains("cdi.annotations"), "{text}");
    }

    #[test]
    fn an_annotation_with_an_invalid_device_name_is_refused() {
        for value in ["", "gpu0", "v.example/g=1,", "v.example/g=1, v.example/g=2", "../x"] {
            let bad = annotations(&[("cdi.k8s.io/a", value)]);
            for honoured in [true, false] {
                let refused = devices(&["v.example/g=1".to_owned()], &bad, honoured);
                assert!(matches!(refused, Err(CdiError::Annotation { .. })), "{value:?}");
            }
        }
    }
}
