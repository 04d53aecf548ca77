//! Images: their names and what is known of them.

use std::time::SystemTime;

use ::image::{Credentials, Image, Reference, Usage};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use model::ImageName;
use wire::v1;

use super::{Field, Refusal, Warnings, pod, status};

pub(super) fn required_name(
    at: Field<'_>,
    asked: Option<v1::ImageSpec>,
    warnings: &mut Warnings,
) -> Result<ImageName, Refusal> {
    name(at, at.required(asked)?, warnings)
}

pub(super) fn name(at: Field<'_>, asked: v1::ImageSpec, warnings: &mut Warnings) -> Result<ImageName, Refusal> {
    let v1::ImageSpec { image, annotations, user_specified_image, runtime_handler, image_ref } = asked;
    if !image_ref.is_empty() {
        warnings.push(format!("{}: set by runtimes only, ignored", at.at("image_ref")));
    }
    Ok(ImageName {
        image: at.at("image").filled(image)?,
        user_specified: user_specified_image,
        annotations,
        handler: pod::handler(at.at("runtime_handler"), runtime_handler)?,
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

/// What PullImage asks for.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) name: ImageName,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) warnings: Warnings,
}

/// The image that a request is about.
pub(crate) fn asked(image: Option<v1::ImageSpec>) -> Result<(ImageName, Warnings), Refusal> {
    let mut warnings = Warnings::new();
    let name = required_name(Field::top("image"), image, &mut warnings)?;
    Ok((name, warnings))
}

/// The one image that a list is to have; none: all.
pub(crate) fn filter(asked: Option<v1::ImageFilter>) -> Option<String> {
    let v1::ImageFilter { image } = asked.unwrap_or_default();
    // An image is looked up by its name alone.
    let v1::ImageSpec { image, annotations: _, user_specified_image: _, runtime_handler: _, image_ref: _ } = image?;
    Some(image).filter(|name| !name.is_empty())
}

pub(crate) fn pull(request: v1::PullImageRequest) -> Result<Pull, Refusal> {
    // The pod is for runtimes that keep images by pod.
    let v1::PullImageRequest { image, auth, sandbox_config: _ } = request;
    let (name, mut warnings) = asked(image)?;
    let reference: Reference = name.image.parse().map_err(|bad| Field::top("image.image").invalid(bad))?;
    let credentials = match auth {
        Some(auth) => credentials(Field::top("auth"), auth, &reference, &mut warnings)?,
        None => None,
    };
    Ok(Pull { name, credentials, warnings })
}

/// The strongest of the ways in `auth`. No part of it may show in an error or a warning.
fn credentials(
    at: Field<'_>,
    auth: v1::AuthConfig,
    image: &Reference,
    warnings: &mut Warnings,
) -> Result<Option<Credentials>, Refusal> {
    let v1::AuthConfig { username, password, auth, server_address, identity_token, registry_token } = auth;
    if !server_address.is_empty() && !is_registry_of(&server_address, image) {
        let field = at.at("server_address");
        warnings.push(format!("{field}: is not the registry of {image}, so the credentials are not used"));
        return Ok(None);
    }
    if !registry_token.is_empty() {
        return Ok(Some(Credentials::RegistryToken(registry_token)));
    }
    if !identity_token.is_empty() {
        return Ok(Some(Credentials::IdentityToken(identity_token)));
    }
    if !auth.is_empty() {
        let decoded = BASE64_STANDARD.decode(auth.trim_end()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
        let (username, password) = pair.ok_or_else(|| at.at("auth").invalid("is not base64 of username:password"))?;
        // Some tools pad the password.
        let password = password.trim_end_matches('\0').to_owned();
        return Ok(Some(Credentials::Basic { username: username.to_owned(), password }));
    }
    match (username.is_empty(), password.is_empty()) {
        (true, true) => Ok(None),
        (true, false) => Err(at.at("username").invalid("empty, but there is a password")),
        (false, _) => Ok(Some(Credentials::Basic { username, password })),
    }
}

/// Whether `server`, as docker's configuration files write it, is the registry that has `image`.
fn is_registry_of(server: &str, image: &Reference) -> bool {
    let bare = server.trim_start_matches("https://").trim_start_matches("http://");
    let host = bare.split('/').next().unwrap_or(bare);
    // As a name's registry it is brought to the same spelling.
    format!("{host}/x/y").parse::<Reference>().is_ok_and(|name| name.registry() == image.registry())
}

/// An image as lists and status show it; `pinned` are the names that the operator wants kept.
pub(crate) fn to_wire(image: &Image, pinned: &[String]) -> v1::Image {
    let Image { id, repo_tags, repo_digests, manifest: _, size, config, chain: _, pinned: marked } = image;
    let user = config.user.split(':').next().unwrap_or_default();
    let uid = user.parse().ok().map(|value| v1::Int64Value { value });
    let username = if uid.is_some() { String::new() } else { user.to_owned() };
    v1::Image {
        id: id.to_string(),
        repo_tags: repo_tags.clone(),
        repo_digests: repo_digests.clone(),
        // An image of nothing at all has a size too: 0 is no answer.
        size: (*size).max(1),
        uid,
        username,
        spec: Some(v1::ImageSpec { image: id.to_string(), ..v1::ImageSpec::default() }),
        pinned: *marked || repo_tags.iter().chain(repo_digests).any(|name| pinned.contains(name)),
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
#[path = "image_tests.rs"]
mod tests;
