//! Resolves the settings of registries and reads the files that they name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::file::{RawImage, RawRegistry};
use super::resolve::{InvalidSetting, absolute, invalid};

/// In bytes; larger than any usual file of credentials or certificates.
const FILE_MAX: u64 = 4 << 20;
/// The section for all registries without a section of their own.
const OTHERS: &str = "*";

/// The users that may have access to a file named by a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readers {
    Anyone,
    /// The file contains a secret.
    OwnerAlone,
}

pub(super) fn resolve(
    image: &RawImage,
    hosts: &BTreeMap<String, RawRegistry>,
) -> Result<image::Registries, InvalidSetting> {
    let mut resolved = BTreeMap::new();
    for (name, raw) in hosts {
        // Host names are case-insensitive, and those in image names are lower case.
        if resolved.insert(name.to_ascii_lowercase(), registry(name, raw)?).is_some() {
            return Err(invalid(&format!("registries.{name:?}"), "duplicate: the names differ in case only"));
        }
    }
    Ok(image::Registries { hosts: resolved, logins: logins(&image.credentials)?, search: search(&image.search)? })
}

/// Returns the files that [`resolve`] reads.
pub(super) fn files(image: &RawImage, hosts: &BTreeMap<String, RawRegistry>) -> Vec<PathBuf> {
    let certificates = hosts.values().flat_map(|raw| [&raw.ca, &raw.client_cert, &raw.client_key]);
    certificates.chain([&image.credentials]).filter(|path| !is_empty(path)).cloned().collect()
}

fn registry(name: &str, raw: &RawRegistry) -> Result<image::Registry, InvalidSetting> {
    let RawRegistry { mirrors, mirrors_only, plain_http, ca, client_cert, client_key } = raw;
    let key = format!("registries.{name:?}");
    if name != OTHERS && !is_host(name) {
        return Err(invalid(&key, "must be HOST[:PORT] or \"*\""));
    }
    if *mirrors_only && mirrors.is_empty() {
        return Err(invalid(&format!("{key}.mirrors_only"), "requires mirrors"));
    }
    let endpoint = |url: &String| url.parse::<image::Endpoint>().map_err(|bad| invalid(&format!("{key}.mirrors"), bad));
    let mirrors = mirrors.iter().map(endpoint).collect::<Result<_, _>>()?;
    let tls = Certificates { key: &key, ca, client_cert, client_key };
    if name == OTHERS {
        tls.absent()?;
    }
    Ok(image::Registry { mirrors, mirrors_only: *mirrors_only, plain_http: *plain_http, tls: tls.read()? })
}

/// The certificate files of one registry, whose settings are below `key`.
struct Certificates<'a> {
    key: &'a str,
    ca: &'a Path,
    client_cert: &'a Path,
    client_key: &'a Path,
}

impl Certificates<'_> {
    /// Checks that no certificate is set; `*` must not grant trust or identity to unnamed hosts.
    fn absent(&self) -> Result<(), InvalidSetting> {
        let all = [("ca", self.ca), ("client_cert", self.client_cert), ("client_key", self.client_key)];
        match all.iter().find(|(_, path)| !is_empty(path)) {
            Some((name, _)) => Err(invalid(&self.of(name), "not allowed for \"*\": use a section for one registry")),
            None => Ok(()),
        }
    }

    fn read(&self) -> Result<image::Tls, InvalidSetting> {
        let mut tls = image::Tls::default();
        if !is_empty(self.ca) {
            let key = self.of("ca");
            let pem = read(&key, self.ca, Readers::Anyone)?;
            tls = tls.with_authorities(&pem).map_err(|bad| unusable(&key, self.ca, bad))?;
        }
        match (is_empty(self.client_cert), is_empty(self.client_key)) {
            (true, true) => Ok(tls),
            (false, true) => Err(invalid(&self.of("client_cert"), "requires client_key")),
            (true, false) => Err(invalid(&self.of("client_key"), "requires client_cert")),
            (false, false) => {
                let chain = read(&self.of("client_cert"), self.client_cert, Readers::Anyone)?;
                let secret = read(&self.of("client_key"), self.client_key, Readers::OwnerAlone)?;
                // Checks the chain alone first, so that the error names the right key.
                let own = image::Tls::default().with_authorities(&chain);
                own.map_err(|bad| unusable(&self.of("client_cert"), self.client_cert, bad))?;
                tls.with_client(&chain, &secret).map_err(|bad| unusable(&self.of("client_key"), self.client_key, bad))
            }
        }
    }

    fn of(&self, name: &str) -> String {
        format!("{}.{name}", self.key)
    }
}

fn logins(file: &Path) -> Result<image::RegistryCredentials, InvalidSetting> {
    let key = "image.credentials";
    if is_empty(file) {
        return Ok(image::RegistryCredentials::default());
    }
    let json = read(key, file, Readers::OwnerAlone)?;
    image::RegistryCredentials::parse(&json).map_err(|bad| unusable(key, file, bad))
}

fn search(registries: &[String]) -> Result<Vec<String>, InvalidSetting> {
    let key = |index| format!("image.search[{index}]");
    let registries: Vec<String> = registries.iter().map(|name| name.to_ascii_lowercase()).collect();
    for (index, name) in registries.iter().enumerate() {
        // A single word such as "library" would be parsed as a part of the path, not as a registry.
        if !format!("{name}/x/y").parse::<image::Reference>().is_ok_and(|example| example.registry() == name.as_str()) {
            return Err(invalid(&key(index), format_args!("must be a registry HOST[:PORT], got {name:?}")));
        }
        if registries[..index].contains(name) {
            return Err(invalid(&key(index), format_args!("duplicate registry {name:?}")));
        }
    }
    Ok(registries)
}

pub(super) fn read(key: &str, path: &Path, readers: Readers) -> Result<Vec<u8>, InvalidSetting> {
    let path = absolute(key, path.to_owned())?;
    let failed = |error: io::Error| invalid(key, format_args!("reading {}: {error}", path.display()));
    // NONBLOCK: open(2) of a FIFO must not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let file = File::from(file);
    let meta = file.metadata().map_err(failed)?;
    let mode = meta.permissions().mode() & 0o777;
    if !meta.is_file() {
        return Err(unusable(key, &path, "is not a regular file"));
    }
    if readers == Readers::OwnerAlone && mode & 0o077 != 0 {
        return Err(unusable(key, &path, format_args!("contains a secret: must have mode 0600, got {mode:04o}")));
    }
    let mut content = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    if u64::try_from(content.len()).map_or(true, |length| length > FILE_MAX) {
        return Err(unusable(key, &path, format_args!("must be at most {FILE_MAX} bytes")));
    }
    Ok(content)
}

pub(super) fn unusable(key: &str, path: &Path, why: impl std::fmt::Display) -> InvalidSetting {
    invalid(key, format_args!("{} {why}", path.display()))
}

pub(super) fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

/// Returns whether `text` may be `HOST[:PORT]`, without scheme and path.
fn is_host(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    !text.is_empty() && text.chars().all(legal)
}

#[cfg(test)]
#[path = "registries_tests.rs"]
mod tests;
