//! Parses the output of plugins: results of all versions, and errors.

use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::PluginError;
use super::exec::PluginOutput;
use super::version::Version;
use crate::attachment::{Attached, INTERFACE};

/// The shown part of a plugin's text.
const SHOWN: usize = 1 << 10;

/// Returns the error of a plugin that failed, with its own message if it has one.
pub(crate) fn check_exit(output: PluginOutput, status: ExitStatus) -> Result<PluginOutput, PluginError> {
    if status.success() {
        return Ok(output);
    }
    let PluginOutput { plugin, verb, stdout, stderr } = output;
    if let Some(signal) = status.signal() {
        return Err(PluginError::Signal { plugin, verb, signal, stderr });
    }
    match serde_json::from_slice::<ErrorJson>(&stdout) {
        Ok(ErrorJson { code, msg, details }) if !(msg.is_empty() && details.is_empty() && code == 0) => {
            let (msg, details) = (clean_start(msg.as_bytes()), clean_start(details.as_bytes()));
            Err(PluginError::Refused { plugin, verb, code, msg, details, stderr })
        }
        _ => {
            let exit = status.code().unwrap_or(-1);
            Err(PluginError::Failed { plugin, verb, exit, stdout: clean_start(&stdout), stderr })
        }
    }
}

#[derive(Deserialize)]
struct ErrorJson {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

/// Returns the beginning of a text, on one line.
pub(crate) fn clean_start(bytes: &[u8]) -> String {
    let shown = clean(&bytes[..bytes.len().min(SHOWN)]);
    if bytes.len() > SHOWN { format!("{shown} ...") } else { shown }
}

/// Returns a text on one line, without control characters.
pub(crate) fn clean(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Parses the output of VERSION.
#[derive(Deserialize)]
pub(crate) struct SupportedVersions {
    #[serde(rename = "cniVersion", default)]
    own: String,
    #[serde(rename = "supportedVersions", default)]
    all: Vec<String>,
}

pub(crate) fn versions(output: PluginOutput) -> Result<Vec<String>, PluginError> {
    match serde_json::from_slice::<SupportedVersions>(&output.stdout) {
        Ok(SupportedVersions { all, .. }) if !all.is_empty() => Ok(all),
        // Plugins of CNI 0.1 report no list.
        Ok(SupportedVersions { own, .. }) if own == "0.2.0" => Ok(vec!["0.1.0".to_owned(), own]),
        Ok(_) => Err(output.invalid_output("it has no supportedVersions")),
        Err(error) => Err(output.invalid_output(error)),
    }
}

/// Parses the result of an ADD and converts it to `version`.
pub(crate) fn result(output: PluginOutput, version: Version) -> Result<Value, PluginError> {
    if output.stdout.iter().all(u8::is_ascii_whitespace) {
        return Err(output.invalid_output("it is empty"));
    }
    let mut result = match serde_json::from_slice(&output.stdout) {
        Ok(Value::Object(result)) => result,
        Ok(_) => return Err(output.invalid_output("expected a JSON object")),
        Err(error) => return Err(output.invalid_output(error)),
    };
    let own = match result.get("cniVersion") {
        // Some plugins omit it, and mean the version of the request.
        None | Some(Value::Null) => version,
        Some(Value::String(own)) if own.is_empty() => version,
        Some(Value::String(own)) => match Version::parse(own) {
            Some(own) => own,
            None => return Err(output.invalid_output("unsupported cniVersion")),
        },
        Some(_) => return Err(output.invalid_output("expected cniVersion to be a string")),
    };
    if let Err(why) = convert(&mut result, own, version) {
        return Err(output.invalid_output(why));
    }
    Ok(Value::Object(result))
}

/// Converts a result from one version to another.
fn convert(result: &mut Map<String, Value>, from: Version, to: Version) -> Result<(), &'static str> {
    result.insert("cniVersion".to_owned(), json!(to.as_str()));
    match (Form::of(from), Form::of(to)) {
        (Form::Pair, Form::Pair) | (Form::Numbered, Form::Numbered) | (Form::Plain, Form::Plain) => {}
        (Form::Pair, to) => {
            let mut ips = Vec::new();
            let mut routes = Vec::new();
            for family in ["ip4", "ip6"] {
                let Some(mut one) = result.remove(family).filter(|one| !one.is_null()) else { continue };
                if let Some(Value::Array(more)) = one.get_mut("routes").map(Value::take) {
                    routes.extend(more);
                }
                let mut ip = json!({ "address": one["ip"] });
                if let Some(gateway) = one.get("gateway").filter(|gateway| !gateway.is_null()) {
                    ip["gateway"] = gateway.clone();
                }
                ips.push(ip);
            }
            result.insert("ips".to_owned(), Value::Array(ips));
            result.insert("routes".to_owned(), Value::Array(routes));
            number(result, to)?;
        }
        (_, Form::Pair) => pair(result)?,
        (_, to) => number(result, to)?,
    }
    Ok(())
}

/// The forms of addresses.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// One key per family: `ip4` and `ip6`.
    Pair,
    /// A list whose entries have a `version`.
    Numbered,
    /// A list.
    Plain,
}

impl Form {
    fn of(version: Version) -> Self {
        match version {
            Version::V0_1_0 | Version::V0_2_0 => Self::Pair,
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => Self::Numbered,
            Version::V1_0_0 | Version::V1_1_0 => Self::Plain,
        }
    }
}

fn number(result: &mut Map<String, Value>, to: Form) -> Result<(), &'static str> {
    let Some(Value::Array(ips)) = result.get_mut("ips") else { return Ok(()) };
    for ip in ips {
        let address = address(&ip["address"])?;
        let Value::Object(ip) = ip else { return Err("expected each entry of ips to be an object") };
        if to == Form::Numbered {
            ip.insert("version".to_owned(), json!(if address.is_ipv4() { "4" } else { "6" }));
        } else {
            ip.remove("version");
        }
    }
    Ok(())
}

/// Only the first address of each family fits into this form.
fn pair(result: &mut Map<String, Value>) -> Result<(), &'static str> {
    let ips = match result.remove("ips") {
        Some(Value::Array(ips)) => ips,
        _ => Vec::new(),
    };
    for ip in &ips {
        let family = if address(&ip["address"])?.is_ipv4() { "ip4" } else { "ip6" };
        if result.contains_key(family) {
            continue;
        }
        let mut one = json!({ "ip": ip["address"] });
        if !ip["gateway"].is_null() {
            one["gateway"] = ip["gateway"].clone();
        }
        result.insert(family.to_owned(), one);
    }
    let routes = match result.remove("routes") {
        Some(Value::Array(routes)) => routes,
        _ => Vec::new(),
    };
    for route in routes {
        let family = if address(&route["dst"])?.is_ipv4() { "ip4" } else { "ip6" };
        if let Some(Value::Object(one)) = result.get_mut(family)
            && let Value::Array(own) = one.entry("routes").or_insert_with(|| json!([]))
        {
            own.push(route);
        }
    }
    result.remove("interfaces");
    Ok(())
}

/// The maximum number of addresses of a pod. Each is in the pod's record, its `/etc/hosts` and every status.
const ADDRESSES_MAX: usize = 64;

/// Returns the addresses of the pod's interface in a result, in order. A result may list others,
/// too.
pub(crate) fn attached(result: &Value, version: Version) -> Result<Attached, &'static str> {
    let mut found = Attached::default();
    if Form::of(version) == Form::Pair {
        for family in ["ip4", "ip6"] {
            if !result[family].is_null() {
                found.ips.push(address(&result[family]["ip"])?);
            }
        }
    } else {
        let none = Vec::new();
        let interfaces = match &result["interfaces"] {
            Value::Null => &none,
            Value::Array(interfaces) => interfaces,
            _ => return Err("expected interfaces to be a list"),
        };
        let ips = match &result["ips"] {
            Value::Null => &none,
            Value::Array(ips) => ips,
            _ => return Err("expected ips to be a list"),
        };
        for ip in ips {
            let address = address(&ip["address"])?;
            if is_own(&ip["interface"], interfaces)? && !found.ips.contains(&address) {
                if found.ips.len() == ADDRESSES_MAX {
                    return Err("it has more than 64 addresses for the pod");
                }
                found.ips.push(address);
            }
        }
    }
    if found.ips.is_empty() { Err("it has no address for the pod") } else { Ok(found) }
}

/// Returns whether an address with this `interface` index belongs to the pod's interface.
fn is_own(index: &Value, interfaces: &[Value]) -> Result<bool, &'static str> {
    if index.is_null() {
        return Ok(true);
    }
    let at = index.as_u64().and_then(|index| usize::try_from(index).ok());
    let interface = at.and_then(|at| interfaces.get(at)).ok_or("an address names an interface that is not there")?;
    let is_named = |one: &Value| one["name"] == INTERFACE;
    let is_inside = |one: &Value| one["sandbox"].as_str().is_some_and(|path| !path.is_empty());
    // The host may have an interface of the same name.
    let twin = |one: &Value| is_named(one) && is_inside(one);
    Ok(is_named(interface) && (is_inside(interface) || !interfaces.iter().any(twin)))
}

fn address(cidr: &Value) -> Result<IpAddr, &'static str> {
    let parse = |text: &str| {
        let (address, length) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        length.parse::<u8>().ok().filter(|length| *length <= most)?;
        Some(address)
    };
    cidr.as_str().and_then(parse).ok_or("an address is not of the form ADDRESS/LENGTH")
}
