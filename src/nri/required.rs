//! The plugins without which a pod or container is not created or changed. Pure.

use std::collections::BTreeSet;

use model::{ErrorClass, ErrorKind};

use crate::api::PodSandbox;
use crate::settings::Settings;

/// The annotation of a pod that names further required plugins, as a YAML list of base names.
pub const REQUIRED_PLUGINS: &str = "required-plugins.noderesource.dev";

/// Bytes of an annotation that are read.
const ANNOTATION_MAX: usize = 4096;

/// An annotation that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    #[error("annotation {0}: {1} bytes, at most {ANNOTATION_MAX}")]
    TooLong(String, usize),
    #[error("annotation {0}: expected a list of names of NRI plugins: {1}")]
    List(String, String),
    #[error("annotation {0}: expected true or false")]
    Bool(String),
}

impl ErrorClass for AnnotationError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::TooLong(..) | Self::List(..) | Self::Bool(..) => ErrorKind::Invalid,
        }
    }
}

/// Returns the base names of the plugins that the pod, or this container of it, requires.
pub fn required(
    settings: &Settings,
    pod: &PodSandbox,
    container: Option<&str>,
) -> Result<BTreeSet<String>, AnnotationError> {
    let validator = &settings.validator;
    if let Some(key) = validator.tolerate_missing_plugins_annotation.as_deref().filter(|_| validator.enable)
        && let Some((key, value)) = effective(pod, key, container)
    {
        match value {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => return Ok(BTreeSet::new()),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => {}
            _ => return Err(AnnotationError::Bool(key)),
        }
    }
    let mut names = BTreeSet::new();
    if !settings.exempt_namespaces.contains(&pod.namespace) {
        names.extend(settings.required.iter().cloned());
        names.extend(settings.plugins.iter().filter(|(_, plugin)| plugin.required).map(|(name, _)| name.clone()));
        if validator.enable {
            names.extend(validator.required_plugins.iter().cloned());
        }
    }
    if let Some((key, value)) = effective(pod, REQUIRED_PLUGINS, container) {
        names.extend(list(key, value)?);
    }
    Ok(names)
}

/// Returns the annotation of the container, else of the pod, else that without either.
fn effective<'a>(pod: &'a PodSandbox, key: &str, container: Option<&str>) -> Option<(String, &'a str)> {
    let of_container = container.map(|name| format!("{key}/container.{name}"));
    let keys = of_container.into_iter().chain([format!("{key}/pod"), key.to_owned()]);
    keys.into_iter().find_map(|key| pod.annotations.get(&key).map(|value| (key, value.as_str())))
}

fn list(key: String, value: &str) -> Result<Vec<String>, AnnotationError> {
    if value.len() > ANNOTATION_MAX {
        return Err(AnnotationError::TooLong(key, value.len()));
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! { max_documents: 1, max_depth: 4, max_aliases: 0, max_nodes: 1024, },
    };
    serde_saphyr::from_str_with_options(value, options)
        .map_err(|error| AnnotationError::List(key, error.to_string().lines().next().unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::PluginSettings;

    fn pod(namespace: &str, annotations: &[(&str, &str)]) -> PodSandbox {
        PodSandbox {
            namespace: namespace.to_owned(),
            annotations: annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..PodSandbox::default()
        }
    }

    fn names(settings: &Settings, pod: &PodSandbox, container: Option<&str>) -> Vec<String> {
        required(settings, pod, container).unwrap().into_iter().collect()
    }

    fn settings() -> Settings {
        let mut settings = Settings { required: ["a".to_owned()].into(), ..Settings::default() };
        settings.plugins.insert("b".to_owned(), PluginSettings { required: true, ..PluginSettings::default() });
        settings.plugins.insert("not".to_owned(), PluginSettings::default());
        settings.validator.required_plugins = vec!["c".to_owned()];
        settings.validator.tolerate_missing_plugins_annotation = Some("tolerate.example.com".to_owned());
        settings
    }

    #[test]
    fn settings_validator_and_annotation_are_joined() {
        let mut settings = settings();
        let pod = pod("default", &[(REQUIRED_PLUGINS, "[d, \"e\"]")]);
        assert_eq!(names(&settings, &pod, None), ["a", "b", "d", "e"], "the validator is off");
        settings.validator.enable = true;
        assert_eq!(names(&settings, &pod, Some("main")), ["a", "b", "c", "d", "e"]);
    }

    #[test]
    fn the_annotation_of_a_container_replaces_that_of_the_pod() {
        let key = |suffix: &str| format!("{REQUIRED_PLUGINS}{suffix}");
        let all = [(&key("") as &str, "- all"), (&key("/pod"), "- pod"), (&key("/container.main"), "- main\n- x")];
        let settings = Settings::default();
        assert_eq!(names(&settings, &pod("", &all), Some("main")), ["main", "x"]);
        assert_eq!(names(&settings, &pod("", &all), Some("other")), ["pod"]);
        assert_eq!(names(&settings, &pod("", &all[..1]), None), ["all"]);
    }

    #[test]
    fn pods_of_exempt_namespaces_need_only_the_plugins_of_their_annotation() {
        let mut settings = settings();
        settings.exempt_namespaces.insert("kube-system".to_owned());
        assert!(names(&settings, &pod("kube-system", &[]), None).is_empty());
        assert_eq!(names(&settings, &pod("kube-system", &[(REQUIRED_PLUGINS, "[x]")]), None), ["x"]);
    }

    #[test]
    fn the_tolerating_annotation_needs_the_validator_and_a_boolean() {
        let mut settings = settings();
        let tolerant = pod("", &[("tolerate.example.com/pod", "true"), (REQUIRED_PLUGINS, "[x]")]);
        assert_eq!(names(&settings, &tolerant, None), ["a", "b", "x"], "the validator is off");
        settings.validator.enable = true;
        assert!(names(&settings, &tolerant, None).is_empty());
        let strict = pod("", &[("tolerate.example.com", "false")]);
        assert_eq!(names(&settings, &strict, None), ["a", "b", "c"]);
        let wrong = required(&settings, &pod("", &[("tolerate.example.com", "yes")]), None);
        assert_eq!(wrong, Err(AnnotationError::Bool("tolerate.example.com".to_owned())));
    }

    #[test]
    fn annotations_that_are_not_a_short_list_of_names_are_refused() {
        let settings = Settings::default();
        for value in ["{a: b}", "name", "[[a]]", "[a", "&a [*a]"] {
            let refused = required(&settings, &pod("", &[(REQUIRED_PLUGINS, value)]), None);
            assert!(matches!(refused, Err(AnnotationError::List(..))), "{value}: {refused:?}");
        }
        let long = format!("[{}]", "a,".repeat(4096));
        let refused = required(&settings, &pod("", &[(REQUIRED_PLUGINS, &long)]), None);
        assert!(matches!(refused, Err(AnnotationError::TooLong(_, 8194))), "{refused:?}");
    }
}
