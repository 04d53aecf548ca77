//! A network configuration: its name, and the plugins to call for each pod.

pub(crate) mod cidr;
pub(crate) mod dir;
pub(crate) mod pod_cidrs;
pub(crate) mod template;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

pub(crate) use super::plugin::version::Version;

/// Names are used in file names by crisp and by plugins.
const NAME_MAX: usize = 128;
const PLUGINS_MAX: usize = 64;

/// A file that is not a valid network configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfError {
    #[error("reading the CNI configuration")]
    Read(#[source] std::io::Error),
    #[error("the CNI configuration is not a regular file")]
    NoFile,
    #[error("the CNI configuration is larger than {0} bytes")]
    TooLarge(u64),
    #[error("the CNI configuration is not valid JSON")]
    Json(#[source] serde_json::Error),
    #[error("the CNI configuration is not a JSON object")]
    NoObject,
    #[error("the CNI configuration has no {0}")]
    Missing(&'static str),
    #[error("{field} of the CNI configuration is not {wanted}")]
    Wrong { field: String, wanted: &'static str },
    #[error(
        "invalid CNI network name {name:?}: expected a letter or digit, then up to 127 letters, digits, dots, hyphens or underscores"
    )]
    Name { name: String },
    #[error("invalid CNI plugin type {plugin:?}: expected a file name without a path")]
    Type { plugin: String },
    #[error("crisp supports no CNI version that the configuration allows: {offered}")]
    Version { offered: String },
    #[error("a CNI configuration with a list of plugins must have the extension .conflist")]
    List,
    #[error("the CNI configuration has more than {PLUGINS_MAX} plugins")]
    TooMany,
    #[error("loadOnlyInlinedPlugins is true, but the CNI configuration has no plugins")]
    NothingInlined,
    #[error("CNI plugin configuration {file}")]
    Beside { file: String, source: Box<ConfError> },
}

/// A network: the plugins to call for a pod, in order, and their settings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConfList {
    pub(super) name: String,
    /// The versions that both the file and crisp support, in ascending order. Never empty.
    pub(super) versions: Vec<Version>,
    pub(super) disable_check: bool,
    pub(super) disable_gc: bool,
    /// `false`: the directory named after the network may contain further plugins.
    pub(super) inlined_only: bool,
    pub(super) plugins: Vec<Plugin>,
}

/// One plugin and its part of the configuration.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plugin {
    /// The name of its executable.
    pub(super) program: String,
    /// The capabilities that it declares.
    pub(super) capabilities: BTreeSet<String>,
    /// Its whole configuration, unchanged.
    pub(super) conf: Map<String, Value>,
}

impl ConfList {
    /// Parses a `.conflist`. It may have no plugins yet: see [`ConfList::inlined_only`].
    pub(super) fn parse(text: &[u8]) -> Result<Self, ConfError> {
        Self::from_object(object(text)?)
    }

    /// Parses a `.conf` or `.json`, which has one plugin.
    pub(super) fn parse_single(text: &[u8]) -> Result<Self, ConfError> {
        let conf = object(text)?;
        if !conf.contains_key("type") && conf.contains_key("plugins") {
            return Err(ConfError::List);
        }
        let (name, versions) = (name(&conf)?, versions(&conf)?);
        let plugins = vec![Plugin::new(conf)?];
        Ok(Self { name, versions, disable_check: false, disable_gc: false, inlined_only: true, plugins })
    }

    fn from_object(mut conf: Map<String, Value>) -> Result<Self, ConfError> {
        let plugins = match conf.remove("plugins") {
            Some(Value::Array(plugins)) if plugins.is_empty() => return Err(ConfError::Missing("plugins")),
            Some(Value::Array(plugins)) if plugins.len() > PLUGINS_MAX => return Err(ConfError::TooMany),
            Some(Value::Array(plugins)) => plugins.into_iter().map(Plugin::from_value).collect::<Result<_, _>>()?,
            Some(_) => return Err(ConfError::Wrong { field: "plugins".to_owned(), wanted: "a list" }),
            None => Vec::new(),
        };
        let inlined_only = flag(&conf, "loadOnlyInlinedPlugins")?;
        if inlined_only && plugins.is_empty() {
            return Err(ConfError::NothingInlined);
        }
        Ok(Self {
            name: name(&conf)?,
            versions: versions(&conf)?,
            disable_check: flag(&conf, "disableCheck")?,
            disable_gc: flag(&conf, "disableGC")?,
            inlined_only,
            plugins,
        })
    }

    /// Adds a plugin from its own file.
    pub(super) fn append(&mut self, text: &[u8]) -> Result<(), ConfError> {
        if self.plugins.len() == PLUGINS_MAX {
            return Err(ConfError::TooMany);
        }
        self.plugins.push(Plugin::new(object(text)?)?);
        Ok(())
    }

    /// Returns it in the form of a `.conflist` for one version.
    pub(super) fn to_value(&self, version: Version) -> Value {
        let plugins: Vec<_> = self.plugins.iter().map(|plugin| &plugin.conf).collect();
        json!({
            "cniVersion": version.as_str(),
            "name": self.name,
            "disableCheck": self.disable_check,
            "disableGC": self.disable_gc,
            "loadOnlyInlinedPlugins": true,
            "plugins": plugins,
        })
    }

    /// Parses the output of [`ConfList::to_value`].
    pub(super) fn from_value(value: Value) -> Result<Self, ConfError> {
        let Value::Object(conf) = value else { return Err(ConfError::NoObject) };
        Self::from_object(conf)
    }

    pub(super) fn highest(&self) -> Version {
        self.versions.last().copied().unwrap_or(Version::UNSAID)
    }

    /// Returns whether a plugin declares `capability`.
    pub(super) fn wants(&self, capability: &str) -> bool {
        self.plugins.iter().any(|plugin| plugin.capabilities.contains(capability))
    }
}

impl Plugin {
    fn from_value(value: Value) -> Result<Self, ConfError> {
        let Value::Object(conf) = value else {
            return Err(ConfError::Wrong { field: "a plugin".to_owned(), wanted: "a JSON object" });
        };
        Self::new(conf)
    }

    fn new(conf: Map<String, Value>) -> Result<Self, ConfError> {
        let program = text(&conf, "type")?.ok_or(ConfError::Missing("type"))?;
        if !is_file_name(&program) {
            return Err(ConfError::Type { plugin: program });
        }
        let capabilities = capabilities(&conf)?;
        Ok(Self { program, capabilities, conf })
    }
}

fn object(text: &[u8]) -> Result<Map<String, Value>, ConfError> {
    match serde_json::from_slice(text).map_err(ConfError::Json)? {
        Value::Object(conf) => Ok(conf),
        _ => Err(ConfError::NoObject),
    }
}

fn name(conf: &Map<String, Value>) -> Result<String, ConfError> {
    let name = text(conf, "name")?.ok_or(ConfError::Missing("name"))?;
    if is_name(&name) && name.len() <= NAME_MAX { Ok(name) } else { Err(ConfError::Name { name }) }
}

/// Returns whether CNI allows `text` as the name of a network or the id of a pod.
pub(super) fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

fn is_file_name(text: &str) -> bool {
    let bad = |c: char| matches!(c, '/' | '\\') || c.is_control();
    !matches!(text, "" | "." | "..") && text.len() <= 255 && !text.contains(bad)
}

fn versions(conf: &Map<String, Value>) -> Result<Vec<Version>, ConfError> {
    let wrong = || ConfError::Wrong { field: "cniVersions".to_owned(), wanted: "a list of texts" };
    let mut offered: Vec<String> = text(conf, "cniVersion")?.into_iter().filter(|one| !one.is_empty()).collect();
    match conf.get("cniVersions") {
        None => {}
        Some(Value::Array(more)) => {
            for one in more {
                offered.push(one.as_str().ok_or_else(wrong)?.to_owned());
            }
        }
        Some(_) => return Err(wrong()),
    }
    if offered.is_empty() {
        return Ok(vec![Version::UNSAID]);
    }
    let supported: BTreeSet<_> = offered.iter().filter_map(|one| Version::parse(one)).collect();
    if supported.is_empty() {
        return Err(ConfError::Version { offered: format!("{offered:?}") });
    }
    Ok(supported.into_iter().collect())
}

fn text(conf: &Map<String, Value>, field: &'static str) -> Result<Option<String>, ConfError> {
    match conf.get(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(ConfError::Wrong { field: field.to_owned(), wanted: "a text" }),
    }
}

/// Returns a boolean, which may be written as a string.
fn flag(conf: &Map<String, Value>, field: &'static str) -> Result<bool, ConfError> {
    let wrong = || ConfError::Wrong { field: field.to_owned(), wanted: "true or false" };
    match conf.get(field) {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) => text.to_ascii_lowercase().parse().map_err(|_| wrong()),
        Some(_) => Err(wrong()),
    }
}

fn capabilities(conf: &Map<String, Value>) -> Result<BTreeSet<String>, ConfError> {
    let wrong = || ConfError::Wrong { field: "capabilities".to_owned(), wanted: "an object of true and false" };
    let declared = match conf.get("capabilities") {
        None | Some(Value::Null) => return Ok(BTreeSet::new()),
        Some(Value::Object(declared)) => declared,
        Some(_) => return Err(wrong()),
    };
    let mut wanted = BTreeSet::new();
    for (capability, supported) in declared {
        if supported.as_bool().ok_or_else(wrong)? {
            wanted.insert(capability.clone());
        }
    }
    Ok(wanted)
}
