//! CDI devices that a container's annotations ask for.

use std::collections::{BTreeMap, HashSet};

use super::CdiError;

/// What such an annotation begins with.
const PREFIX: &str = "cdi.k8s.io/";

/// `asked`, then what the annotations ask for beside them, each device once. Where annotations are not `honoured`, one
/// that asks for more is refused: a container without its device would fail later, and nobody would know why.
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
    use super::*;

    fn annotations(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn annotations_add_devices_in_the_order_of_their_names_and_each_once() {
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
    fn an_annotation_that_is_not_honoured_may_say_what_was_said_and_no_more() {
        let asked = ["v.example/g=1".to_owned()];
        let same = annotations(&[("cdi.k8s.io/a", "v.example/g=1")]);
        assert_eq!(devices(&asked, &same, false).unwrap(), asked);
        let more = annotations(&[("cdi.k8s.io/a", "v.example/g=1,v.example/g=2")]);
        let refused = devices(&asked, &more, false).unwrap_err().to_string();
        assert!(refused.contains("cdi.k8s.io/a") && refused.contains("v.example/g=2"), "{refused}");
        assert!(refused.contains("cdi.annotations"), "{refused}");
    }

    #[test]
    fn an_annotation_that_names_no_device_is_refused_by_name() {
        for value in ["", "gpu0", "v.example/g=1,", "v.example/g=1, v.example/g=2", "../x"] {
            let bad = annotations(&[("cdi.k8s.io/a", value)]);
            for honoured in [true, false] {
                let refused = devices(&["v.example/g=1".to_owned()], &bad, honoured);
                assert!(matches!(refused, Err(CdiError::Annotation { .. })), "{value:?}");
            }
        }
    }
}
