//! The handlers of ImageService: each converts the request, calls the image service and converts the result.

use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use config::PinnedImages;
use cri_api::v1::image_service_server::ImageService;
use cri_api::v1::*;
use model::PodMeta;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::{RpcResult, log_warnings, record_image, run_blocking, status};
use crate::convert;
use crate::images::{Documents, ImageError, Images};
use crate::log_names::LogNames;

/// The number of images in one message of a stream.
const CHUNK: usize = 100;

#[derive(Debug)]
pub(crate) struct ImageApi {
    images: Arc<Images>,
}

impl ImageApi {
    pub(crate) fn new(images: Images) -> Self {
        Self { images: Arc::new(images) }
    }

    fn list(&self, filter: Option<ImageFilter>) -> Result<Vec<Arc<::image::Image>>, Status> {
        let (name, warnings) = convert::image::filter(filter).map_err(status::of)?;
        log_warnings(&warnings);
        self.images.list(name.as_ref()).map_err(|error| refused("filter.image", error))
    }

    /// Returns the additional information of a verbose ImageStatus.
    async fn info(&self, image: Arc<::image::Image>) -> Result<String, Status> {
        let images = Arc::clone(&self.images);
        run_blocking(move || {
            let Documents { config, manifest } = images.documents(&image);
            let pinned = images.pinned().keeps(&image);
            let info = convert::image::info::info(&image, pinned, config.as_deref(), manifest.as_deref());
            serde_json::to_string(&info).unwrap_or_default()
        })
        .await
    }
}

/// Returns the status of an error, with the path of the field whose handler does not exist.
fn refused(image: &str, error: ImageError) -> Status {
    match error {
        ImageError::Handler(error) => status::of_field(&format_args!("{image}.runtime_handler"), &error),
        error => status::of(error),
    }
}

/// Returns the images in chunks, none of them empty, each created when the client reads it.
fn chunks(images: Vec<Arc<::image::Image>>, pinned: PinnedImages) -> impl Iterator<Item = StreamImagesResponse> {
    let mut rest = images.into_iter();
    std::iter::from_fn(move || {
        let images = rest.by_ref().take(CHUNK).map(|image| convert::image::to_wire(&image, &pinned));
        let images: Vec<Image> = images.collect();
        (!images.is_empty()).then_some(StreamImagesResponse { images })
    })
}

#[tonic::async_trait]
impl ImageService for ImageApi {
    type StreamImagesStream = Pin<Box<dyn Stream<Item = Result<StreamImagesResponse, Status>> + Send>>;

    async fn list_images(&self, request: Request<ListImagesRequest>) -> RpcResult<ListImagesResponse> {
        let ListImagesRequest { filter } = request.into_inner();
        let (images, pinned) = (self.list(filter)?, self.images.pinned());
        let images = images.iter().map(|image| convert::image::to_wire(image, &pinned)).collect();
        Ok(Response::new(ListImagesResponse { images }))
    }

    async fn stream_images(&self, request: Request<StreamImagesRequest>) -> RpcResult<Self::StreamImagesStream> {
        let StreamImagesRequest { filter } = request.into_inner();
        let chunks = chunks(self.list(filter)?, self.images.pinned());
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks.map(Ok)))))
    }

    async fn image_status(&self, request: Request<ImageStatusRequest>) -> RpcResult<ImageStatusResponse> {
        let ImageStatusRequest { image, verbose } = request.into_inner();
        let (name, warnings) = convert::image::image_name(image).map_err(status::of)?;
        record_image(&name.image);
        log_warnings(&warnings);
        let found = self.images.find(&name).map_err(|error| refused("image", error))?;
        let image = found.as_ref().map(|image| convert::image::to_wire(image, &self.images.pinned()));
        let info = match found.filter(|_| verbose) {
            Some(image) => [("info".to_owned(), self.info(image).await?)].into(),
            None => Default::default(),
        };
        Ok(Response::new(ImageStatusResponse { image, info }))
    }

    async fn pull_image(&self, request: Request<PullImageRequest>) -> RpcResult<PullImageResponse> {
        let search = self.images.search().await;
        let pull = convert::image::pull(request.into_inner(), &search).map_err(status::of)?;
        let convert::image::Pull { name, request, pod, warnings } = pull;
        record_image(&name.image);
        if let Some(PodMeta { name, uid, namespace, attempt: _ }) = pod {
            LogNames::of_meta(&namespace, &name, &uid).record();
        }
        log_warnings(&warnings);
        // Not detached: a client that no longer wants the image disconnects, and the store abandons the pull.
        let image = self.images.pull(&name, request).await.map_err(|error| refused("image", error))?;
        Ok(Response::new(PullImageResponse { image_ref: image.id.to_string() }))
    }

    async fn remove_image(&self, request: Request<RemoveImageRequest>) -> RpcResult<RemoveImageResponse> {
        let RemoveImageRequest { image } = request.into_inner();
        let (name, warnings) = convert::image::image_name(image).map_err(status::of)?;
        record_image(&name.image);
        log_warnings(&warnings);
        let images = Arc::clone(&self.images);
        run_blocking(move || images.remove(&name)).await?.map_err(|error| refused("image", error))?;
        Ok(Response::new(RemoveImageResponse {}))
    }

    async fn image_fs_info(&self, _: Request<ImageFsInfoRequest>) -> RpcResult<ImageFsInfoResponse> {
        let images = Arc::clone(&self.images);
        let (images, containers) = run_blocking(move || images.filesystems()).await?;
        let now = SystemTime::now();
        Ok(Response::new(ImageFsInfoResponse {
            image_filesystems: vec![convert::image::usage_to_wire(&images, now)],
            container_filesystems: vec![convert::image::usage_to_wire(&containers, now)],
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(count: usize) -> Vec<Arc<::image::Image>> {
        let image = |number| {
            Arc::new(::image::Image {
                id: format!("sha256:{number:064x}").parse().unwrap(),
                repo_tags: Vec::new(),
                repo_digests: Vec::new(),
                manifest: None,
                size: 1,
                user: String::new(),
                chain: Vec::new(),
            })
        };
        (0..count).map(image).collect()
    }

    #[test]
    fn a_stream_has_each_image_once_and_no_empty_chunk() {
        for (count, sizes) in [(0, &[][..]), (1, &[1]), (CHUNK, &[CHUNK]), (2 * CHUNK + 1, &[CHUNK, CHUNK, 1])] {
            let all = images(count);
            let chunks: Vec<_> = chunks(all.clone(), PinnedImages::default()).collect();
            assert_eq!(chunks.iter().map(|chunk| chunk.images.len()).collect::<Vec<_>>(), sizes);
            let ids: Vec<_> = chunks.iter().flat_map(|chunk| &chunk.images).map(|image| image.id.clone()).collect();
            assert_eq!(ids, all.iter().map(|image| image.id.to_string()).collect::<Vec<_>>());
        }
    }
}
