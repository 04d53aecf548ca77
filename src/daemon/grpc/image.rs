//! ImageService.

use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use config::{PinnedImages, RegistryReloader};
use cri_api::v1::image_service_server::ImageService;
use cri_api::v1::*;
use model::error_chain::chain;
use model::{ErrorClass, ErrorKind, ImageName, PodMeta};
use sync::threads::ORDINARY;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::{RpcResult, filesystem, log_warnings, outcome, record_image, record_pod_id, run_blocking, status};
use crate::convert;
use crate::runtime::Runtime;

/// Images in one message of a stream.
const CHUNK: usize = 100;

#[derive(Debug)]
pub(crate) struct ImageApi {
    runtime: Arc<Runtime>,
    registries: Arc<RegistryReloader>,
}

impl ImageApi {
    pub(crate) fn new(runtime: Arc<Runtime>, registries: Arc<RegistryReloader>) -> Self {
        Self { runtime, registries }
    }

    fn show(&self, image: &::image::Image) -> Image {
        convert::image::to_wire(image, &self.runtime.settings().pinned)
    }

    fn list(&self, filter: Option<ImageFilter>) -> Result<Vec<Arc<::image::Image>>, Status> {
        let (name, warnings) = convert::image::filter(filter).map_err(status::of)?;
        log_warnings(&warnings);
        if let Some(name) = &name {
            self.check_handler("filter.image", name)?;
        }
        let store = self.runtime.images();
        Ok(match name.map(|name| name.image).filter(|name| !name.is_empty()) {
            Some(name) => find(store, &name)?.into_iter().collect(),
            None => store.list(),
        })
    }

    /// Images are the same for all handlers, so the name only has to be one.
    fn check_handler(&self, field: &str, name: &ImageName) -> Result<(), Status> {
        let handlers = &self.runtime.settings().handlers;
        let found = handlers.asked(&name.handler).map(drop);
        found.map_err(|error| status::of_field(&format_args!("{field}.runtime_handler"), &error))
    }

    /// Uses the registries as they are configured now. What is wrong with their files fails no pull: the last good
    /// settings stay.
    async fn reload_registries(&self) {
        let (registries, store) = (Arc::clone(&self.registries), Arc::clone(self.runtime.images()));
        let look = move || registries.refresh(|new| store.set_registries(new));
        match ORDINARY.run(look).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = chain(&error);
                tracing::warn!(error, "the registries' new settings are not used: the last good ones stay");
            }
            Err(_) => tracing::error!("looking at the registries' settings ended in a panic"),
        }
    }

    /// What a verbose status tells beside the image.
    async fn info(&self, image: Arc<::image::Image>) -> String {
        let store = Arc::clone(self.runtime.images());
        let pinned = self.runtime.settings().pinned.keeps(&image);
        let tell = move || {
            // An image that is being removed has its documents no more.
            let config = store.blob(&image.id).ok();
            let manifest = image.manifest.as_ref().and_then(|digest| store.blob(digest).ok());
            let info = convert::image::info::info(&image, pinned, config.as_deref(), manifest.as_deref());
            serde_json::to_string(&info).unwrap_or_default()
        };
        ORDINARY.run(tell).await.unwrap_or_default()
    }
}

/// The image that a request names.
fn find(store: &::image::Store, name: &str) -> Result<Option<Arc<::image::Image>>, Status> {
    store.lookup(name).map_err(|error| status::of(ImageError::from(error)))
}

/// An image that could not be found, pulled or removed.
#[derive(Debug, thiserror::Error)]
enum ImageError {
    #[error("image.image")]
    Find(#[from] ::image::AmbiguousImageId),
    #[error(transparent)]
    Pull(#[from] ::image::PullError),
    #[error(transparent)]
    Remove(#[from] ::image::DiskError),
}

impl ErrorClass for ImageError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Find(error) => error.kind(),
            Self::Pull(error) => error.kind(),
            Self::Remove(error) => error.kind(),
        }
    }
}

/// A list in pieces, none of them empty, each made when the client is ready for it.
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
        let images = self.list(filter)?;
        Ok(Response::new(ListImagesResponse { images: images.iter().map(|image| self.show(image)).collect() }))
    }

    async fn stream_images(&self, request: Request<StreamImagesRequest>) -> RpcResult<Self::StreamImagesStream> {
        let StreamImagesRequest { filter } = request.into_inner();
        let chunks = chunks(self.list(filter)?, self.runtime.settings().pinned.clone());
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks.map(Ok)))))
    }

    async fn image_status(&self, request: Request<ImageStatusRequest>) -> RpcResult<ImageStatusResponse> {
        let ImageStatusRequest { image, verbose } = request.into_inner();
        let (name, warnings) = convert::image::asked(image).map_err(status::of)?;
        record_image(&name.image);
        log_warnings(&warnings);
        self.check_handler("image", &name)?;
        let found = find(self.runtime.images(), &name.image)?;
        let image = found.as_ref().map(|image| self.show(image));
        let info = match found.filter(|_| verbose) {
            Some(image) => [("info".to_owned(), self.info(image).await)].into(),
            None => Default::default(),
        };
        Ok(Response::new(ImageStatusResponse { image, info }))
    }

    async fn pull_image(&self, request: Request<PullImageRequest>) -> RpcResult<PullImageResponse> {
        self.reload_registries().await;
        let store = self.runtime.images();
        let pull = convert::image::pull(request.into_inner(), &store.search()).map_err(status::of)?;
        let convert::image::Pull { name: image, request, pod, warnings } = pull;
        record_image(&image.image);
        if let Some(PodMeta { name, uid, namespace, attempt: _ }) = pod {
            record_pod_id(&format!("{namespace}/{name} {uid}"));
        }
        log_warnings(&warnings);
        self.check_handler("image", &image)?;
        // Not to its end: the caller hangs up when it no longer wants the image, and the store abandons the pull.
        let pulled = store.pull(request).await;
        let image = pulled.map_err(|error| status::of(ImageError::from(error)))?;
        Ok(Response::new(PullImageResponse { image_ref: image.id.to_string() }))
    }

    async fn remove_image(&self, request: Request<RemoveImageRequest>) -> RpcResult<RemoveImageResponse> {
        let RemoveImageRequest { image } = request.into_inner();
        let (name, warnings) = convert::image::asked(image).map_err(status::of)?;
        record_image(&name.image);
        log_warnings(&warnings);
        self.check_handler("image", &name)?;
        let store = Arc::clone(self.runtime.images());
        let Some(image) = find(&store, &name.image)? else { return Ok(Response::new(RemoveImageResponse {})) };
        // By id: CRI removes an image with all its names, whichever was given, and also one that is pinned, which only
        // says what the kubelet collects by itself. Containers keep the layers they run from.
        let remove = move || store.remove(image.id.as_str()).map_err(ImageError::from);
        outcome(ORDINARY.run(remove)).await?;
        Ok(Response::new(RemoveImageResponse {}))
    }

    async fn image_fs_info(&self, _: Request<ImageFsInfoRequest>) -> RpcResult<ImageFsInfoResponse> {
        let runtime = Arc::clone(&self.runtime);
        let look = move || {
            let images = runtime.images().usage();
            let containers = filesystem::of_containers(&images, &runtime.layers_dir());
            (images, containers)
        };
        let (images, containers) = run_blocking(look).await?;
        let now = SystemTime::now();
        let containers = containers.unwrap_or_else(|error| {
            tracing::warn!(%error, "where containers write is told as where images are");
            images.clone()
        });
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
