//! Prints what a command did to images, as text or JSON; docs/json.md has the forms.

use std::io::{self, Write};

use cri_api::admin;
use indicatif::HumanBytes;
use serde_json::{Value, json};

use super::table::short;
use crate::output;

/// Prints ID and tags of each image.
pub(super) fn imported(images: &[admin::Image], as_json: bool) -> io::Result<()> {
    let mut out = output::stdout();
    if as_json {
        return print_json(&mut out, &images.iter().map(image).collect());
    }
    images.iter().try_for_each(|image| writeln!(out, "{}", line(image)))
}

pub(super) fn removed(removed: &[admin::RemoveResponse], as_json: bool) -> io::Result<()> {
    let mut out = output::stdout();
    if as_json {
        let one = |removed: &admin::RemoveResponse| json!({ "id": removed.id, "untagged": removed.untagged, "removed": removed.removed });
        return print_json(&mut out, &removed.iter().map(one).collect());
    }
    for admin::RemoveResponse { id, untagged, removed } in removed {
        untagged.iter().try_for_each(|tag| writeln!(out, "untagged {tag}"))?;
        if *removed {
            writeln!(out, "removed {id}")?;
        }
    }
    Ok(())
}

pub(super) fn pruned(pruned: &admin::PruneResponse, dry_run: bool, as_json: bool) -> io::Result<()> {
    let admin::PruneResponse { images, bytes } = pruned;
    let mut out = output::stdout();
    if as_json {
        let images: Vec<Value> = images.iter().map(image).collect();
        return print_json(&mut out, &json!({ "dry_run": dry_run, "images": images, "bytes": bytes }));
    }
    images.iter().try_for_each(|image| writeln!(out, "{}", line(image)))?;
    let verb = if dry_run { "would free" } else { "freed" };
    let noun = if images.len() == 1 { "image" } else { "images" };
    writeln!(output::stderr(), "{verb} {} of {} {noun}", HumanBytes(*bytes), images.len())
}

fn print_json(out: &mut impl Write, value: &Value) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

fn image(image: &admin::Image) -> Value {
    let admin::Image { id, tags, size } = image;
    json!({ "id": id, "tags": tags, "size": size })
}

/// Formats an image in one line: ID and tags.
fn line(image: &admin::Image) -> String {
    let names = if image.tags.is_empty() { short(&image.id).to_owned() } else { image.tags.join(" ") };
    format!("{} {names}", image.id)
}
