//! Images: their names and what is known of them.

use model::ImageName;
use wire::v1;

use super::{Field, Refusal, Warnings, pod};

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
