//! Converts images and requests about them.

pub(crate) mod info;

use std::time::SystemTime;

use ::image::{Credentials, HUB, Image, PullRequest, Reference, RegistryLogin, Usage};
use config::PinnedImages;
use cri_api::v1;
use model::{ImageName, PodMeta};

use super::{FieldPath, InvalidField, Warnings, pod, status};

/// The longest user that is returned. Images are untrusted: a few users of megabytes would exceed
/// the message limit of clients.
const USERNAME_MAX: usize = 256;

pub(super) fn required_name(
    at: FieldPath<'_>,
    asked: Option<v1::ImageSpec>,
    warnings: &mut Warnings,
) -> Result<ImageName, InvalidField> {
    name(at, at.required(asked)?, warnings)
}

pub(super) fn name(
    at: FieldPath<'_>,
    asked: v1::ImageSpec,
    warnings: &mut Warnings,
) -> Result<ImageName, InvalidField> {
    let name = name_or_none(at, asked, warnings)?;
    if name.image.is_empty() { Err(at.at("image").invalid("empty")) } else { Ok(name) }
}

fn name_or_none(at: FieldPath<'_>, asked: v1::ImageSpec, warnings: &mut Warnings) -> Result<ImageName, InvalidField> {
    let v1::ImageSpec { image, annotations, user_specified_image, runtime_handler, image_ref } = asked;
    if !image_ref.is_empty() {
        warnings.push(format!("{}: set by runtimes only, ignored", at.at("image_ref")));
    }
    Ok(ImageName {
        image: at.at("image").text(image)?,
        user_specified: user_specified_image,
        annotations,
        handler: runtime_handler,
    })
}

pub(super) fn name_to_wire(name: &ImageName) -> v1::ImageSpec {
    let ImageName { image, user_specified, annotations, handler } = name.clone();
    v1::ImageSpec {
        image,
        annotations,
        user_specified_image: user_specified,
        runtime_handler: handler,
        image_ref: String::new(),
    }
}

/// The content of a PullImage request.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) name: ImageName,
    pub(crate) request: PullRequest,
    /// The pod that the image is for, if the client sends it.
    pub(crate) pod: Option<PodMeta>,
    pub(crate) warnings: Warnings,
}

/// Converts the image of a request.
pub(crate) fn image_name(image: Option<v1::ImageSpec>) -> Result<(ImageName, Warnings), InvalidField> {
    let mut warnings = Warnings::new();
    let name = required_name(FieldPath::top("image"), image, &mut warnings)?;
    Ok((name, warnings))
}

/// Converts the filter of a list: the name of one image, or none for all images.
pub(crate) fn filter(asked: Option<v1::ImageFilter>) -> Result<(Option<ImageName>, Warnings), InvalidField> {
    let mut warnings = Warnings::new();
    let v1::ImageFilter { image } = asked.unwrap_or_default();
    let Some(image) = image else { return Ok((None, warnings)) };
    let at = FieldPath::top("filter");
    let at = at.at("image");
    let name = name_or_none(at, image, &mut warnings)?;
    Ok((Some(name), warnings))
}

/// `search` are the registries for a name without one.
pub(crate) fn pull(request: v1::PullImageRequest, search: &[String]) -> Result<Pull, InvalidField> {
    let v1::PullImageRequest { image, auth, sandbox_config } = request;
    let (name, mut warnings) = image_name(image)?;
    let at = FieldPath::top("image.image");
    let candidates = Reference::candidates(&name.image, search).map_err(|bad| at.invalid(bad))?;
    let credentials = match auth {
        Some(auth) => login(FieldPath::top("auth"), auth, &name.image, &candidates, &mut warnings)?,
        None => None,
    };
    // Only the pod's name is used here, and some clients omit it; RunPodSandbox checks the rest.
    let at = FieldPath::top("sandbox_config");
    let metadata = sandbox_config.and_then(|config| config.metadata);
    let pod = metadata.map(|metadata| pod::meta(at.at("metadata"), Some(metadata))).transpose()?;
    Ok(Pull { name, request: PullRequest { candidates, credentials }, pod, warnings })
}

/// Returns the credentials and the registry among the candidates that they are for: the one in
/// `auth`, otherwise the one that clients look up credentials for, docker.io for a name without a
/// registry.
fn login(
    at: FieldPath<'_>,
    auth: v1::AuthConfig,
    name: &str,
    candidates: &[Reference],
    warnings: &mut Warnings,
) -> Result<Option<RegistryLogin>, InvalidField> {
    let server = auth.server_address.clone();
    let Some(credentials) = credentials(at, auth)? else { return Ok(None) };
    let is_owner = |registry: &str| match server.is_empty() {
        true => Reference::names_registry(name) || registry == HUB,
        false => is_registry(&server, registry),
    };
    match candidates.iter().map(Reference::registry).find(|registry| is_owner(registry)) {
        Some(registry) => Ok(Some(RegistryLogin { registry: registry.to_owned(), credentials })),
        None => {
            warnings.push(format!("{at}: for another registry than {name} is looked for in, so not used"));
            Ok(None)
        }
    }
}

/// Returns the strongest credentials in `auth`. Errors and warnings must not contain any part of
/// them.
fn credentials(at: FieldPath<'_>, auth: v1::AuthConfig) -> Result<Option<Credentials>, InvalidField> {
    let v1::AuthConfig { username, password, auth, server_address: _, identity_token, registry_token } = auth;
    if !registry_token.is_empty() {
        return Ok(Some(Credentials::RegistryToken(registry_token)));
    }
    if !identity_token.is_empty() {
        return Ok(Some(Credentials::IdentityToken(identity_token)));
    }
    if !auth.is_empty() {
        let pair = Credentials::from_docker_auth(&auth);
        return pair.map(Some).ok_or_else(|| at.at("auth").invalid("expected base64 of username:password"));
    }
    match (username.is_empty(), password.is_empty()) {
        (true, true) => Ok(None),
        (true, false) => Err(at.at("username").invalid("empty, but password is set")),
        (false, _) => Ok(Some(Credentials::Basic { username, password })),
    }
}

/// Returns whether `server`, in the form of docker's configuration files, is `registry`.
fn is_registry(server: &str, registry: &str) -> bool {
    let bare = server.trim_start_matches("https://").trim_start_matches("http://");
    let host = bare.split('/').next().unwrap_or(bare);
    // Parsing a name normalizes its registry.
    format!("{host}/x/y").parse::<Reference>().is_ok_and(|name| name.registry() == registry)
}

/// Converts an image for lists and status; `pinned` are the images that the configuration pins.
pub fn to_wire(image: &Image, pinned: &PinnedImages) -> v1::Image {
    let Image { id, repo_tags, repo_digests, manifest: _, size, user: _, chain: _ } = image;
    v1::Image {
        id: id.to_string(),
        repo_tags: repo_tags.clone(),
        repo_digests: repo_digests.clone(),
        // CRI requires a size above 0, also for an empty image.
        size: (*size).max(1),
        // The kubelet accepts any uid but 0 for runAsNonRoot, so only a valid one is returned.
        uid: image.uid().map(|uid| v1::Int64Value { value: uid.into() }),
        username: image.username().chars().take(USERNAME_MAX).collect(),
        spec: Some(v1::ImageSpec { image: id.to_string(), ..v1::ImageSpec::default() }),
        pinned: pinned.keeps(image),
    }
}

pub(crate) fn usage_to_wire(usage: &Usage, now: SystemTime) -> v1::FilesystemUsage {
    let Usage { path, bytes, inodes } = usage;
    v1::FilesystemUsage {
        timestamp: status::nanos(now),
        fs_id: Some(v1::FilesystemIdentifier { mountpoint: path.display().to_string() }),
        used_bytes: Some(v1::UInt64Value { value: *bytes }),
        inodes_used: Some(v1::UInt64Value { value: *inodes }),
    }
}

#[cfg(test)]
mod tests;
