//! ImageService.

use std::sync::Arc;
use std::time::SystemTime;

use model::{Classed, Kind};
use serde_json::json;
use tonic::{Request, Response, Status};
use wire::v1::image_service_server::ImageService;
use wire::v1::*;

use super::{Answer, log_warnings, not_yet, outcome, status, verbose};
use crate::convert;
use crate::runtime::Runtime;

#[derive(Debug)]
pub(crate) struct ImageApi {
    runtime: Arc<Runtime>,
}

impl ImageApi {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime }
    }

    fn show(&self, image: &::image::Image) -> Image {
        convert::image::to_wire(image, &self.runtime.config().pinned)
    }
}

/// An image that could not be pulled or removed.
#[derive(Debug, thiserror::Error)]
enum ImageError {
    #[error(transparent)]
    Pull(#[from] ::image::PullError),
    #[error(transparent)]
    Remove(#[from] ::image::DiskError),
}

impl Classed for ImageError {
    fn kind(&self) -> Kind {
        match self {
            Self::Pull(error) => error.kind(),
            Self::Remove(error) => error.kind(),
        }
    }
}

#[tonic::async_trait]
impl ImageService for ImageApi {
    type StreamImagesStream = tokio_stream::Empty<Result<StreamImagesResponse, Status>>;

    async fn list_images(&self, request: Request<ListImagesRequest>) -> Answer<ListImagesResponse> {
        let ListImagesRequest { filter } = request.into_inner();
        let store = self.runtime.images();
        let images = match convert::image::filter(filter) {
            Some(name) => store.find(&name).into_iter().collect(),
            None => store.list(),
        };
        Ok(Response::new(ListImagesResponse { images: images.iter().map(|image| self.show(image)).collect() }))
    }

    async fn image_status(&self, request: Request<ImageStatusRequest>) -> Answer<ImageStatusResponse> {
        let ImageStatusRequest { image, verbose: wanted } = request.into_inner();
        let (name, warnings) = convert::image::asked(image).map_err(status::of)?;
        log_warnings(&warnings);
        let found = self.runtime.images().find(&name.image);
        Ok(Response::new(ImageStatusResponse {
            image: found.as_ref().map(|image| self.show(image)),
            info: found.map(|image| verbose(wanted, || json!(*image))).unwrap_or_default(),
        }))
    }

    async fn pull_image(&self, request: Request<PullImageRequest>) -> Answer<PullImageResponse> {
        let pull = convert::image::pull(request.into_inner()).map_err(status::of)?;
        let convert::image::Pull { name, credentials, warnings } = pull;
        log_warnings(&warnings);
        // Not to its end: the caller hangs up when it no longer wants the image, and the store abandons the pull.
        let pulled = self.runtime.images().pull(&name.image, credentials).await;
        let image = pulled.map_err(|error| status::of(ImageError::from(error)))?;
        Ok(Response::new(PullImageResponse { image_ref: image.id.to_string() }))
    }

    async fn remove_image(&self, request: Request<RemoveImageRequest>) -> Answer<RemoveImageResponse> {
        let RemoveImageRequest { image } = request.into_inner();
        let (name, warnings) = convert::image::asked(image).map_err(status::of)?;
        log_warnings(&warnings);
        let store = Arc::clone(self.runtime.images());
        let Some(image) = store.find(&name.image) else { return Ok(Response::new(RemoveImageResponse {})) };
        // By id: CRI removes an image with all its names, whichever was given.
        let remove = move || store.remove(image.id.as_str()).map_err(ImageError::from);
        outcome(tokio::task::spawn_blocking(remove)).await?;
        Ok(Response::new(RemoveImageResponse {}))
    }

    async fn image_fs_info(&self, _: Request<ImageFsInfoRequest>) -> Answer<ImageFsInfoResponse> {
        let usage = self.runtime.images().usage();
        let filesystem = convert::image::usage_to_wire(&usage, SystemTime::now());
        Ok(Response::new(ImageFsInfoResponse {
            image_filesystems: vec![filesystem],
            container_filesystems: Vec::new(),
        }))
    }

    async fn stream_images(&self, _: Request<StreamImagesRequest>) -> Answer<Self::StreamImagesStream> {
        not_yet("StreamImages", "use ListImages; lists in chunks are planned")
    }
}
