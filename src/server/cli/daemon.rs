//! Images through a running daemon.

use std::io::Write as _;
use std::path::Path;

use ::image::{Compress, Progress};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use wire::admin::images_client::ImagesClient;
use wire::v1::image_service_client::ImageServiceClient;
use wire::{admin, v1};

use super::image::ImageError;
use super::interrupt::Interrupt;
use super::meter::Meter;
use super::output::Output;
use crate::grpc::REQUEST_MAX;

/// Bytes of an archive that may be on their way.
const WINDOW: u32 = 4 << 20;

/// A daemon that answers.
pub(super) struct Daemon {
    channel: Channel,
}

fn failed(status: Status) -> ImageError {
    match status.code() {
        // Our own calls are there in every daemon of this release.
        Code::Unimplemented => ImageError::OtherDaemon(Box::new(status)),
        _ => ImageError::Daemon(Box::new(status)),
    }
}

impl Daemon {
    pub(super) async fn connect(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        let endpoint = endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
        Ok(Self { channel: endpoint.connect().await? })
    }

    fn cri(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone()).max_decoding_message_size(REQUEST_MAX)
    }

    fn admin(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.channel.clone()).max_decoding_message_size(REQUEST_MAX)
    }

    pub(super) async fn list(&self) -> Result<Vec<v1::Image>, ImageError> {
        let listed = self.cri().list_images(v1::ListImagesRequest::default()).await;
        Ok(listed.map_err(failed)?.into_inner().images)
    }

    /// Removes an image with all its names; false if there is none.
    pub(super) async fn remove(&self, name: &str) -> Result<bool, ImageError> {
        let spec = |image: &str| Some(v1::ImageSpec { image: image.to_owned(), ..v1::ImageSpec::default() });
        let ask = v1::ImageStatusRequest { image: spec(name), verbose: false };
        let found = self.cri().image_status(ask).await.map_err(failed)?.into_inner().image;
        let Some(image) = found else { return Ok(false) };
        let ask = v1::RemoveImageRequest { image: spec(&image.id) };
        self.cri().remove_image(ask).await.map_err(failed)?;
        Ok(true)
    }

    pub(super) async fn import(
        &self,
        path: &Path,
        name: Option<&str>,
        meter: &Meter,
        interrupt: &Interrupt,
    ) -> Result<Vec<admin::Image>, ImageError> {
        let path = path.to_str().ok_or_else(|| ImageError::Path(path.to_owned()))?.to_owned();
        let ask = admin::ImportRequest { path, name: name.unwrap_or_default().to_owned() };
        let mut told = self.admin().import(ask).await.map_err(failed)?.into_inner();
        let mut images = Vec::new();
        loop {
            // Dropping the stream tells the daemon that nobody wants it any more.
            let message = tokio::select! {
                message = told.message() => message.map_err(failed)?,
                () = interrupt.stopped() => return Err(ImageError::Interrupted),
            };
            let Some(admin::ImportProgress { bytes, total, layers, images: found }) = message else {
                return Ok(images);
            };
            meter.tell(Progress { bytes, total, layers });
            images.extend(found);
        }
    }

    pub(super) async fn export(
        &self,
        names: &[String],
        compress: Compress,
        output: &mut Output,
        meter: &Meter,
        interrupt: &Interrupt,
    ) -> Result<(), ImageError> {
        let compression = match compress {
            Compress::No => admin::Compression::None,
            Compress::Gzip => admin::Compression::Gzip,
            Compress::Zstd => admin::Compression::Zstd,
        };
        let ask = admin::ExportRequest { names: names.to_vec(), compression: compression.into() };
        let mut pieces = self.admin().export(ask).await.map_err(failed)?.into_inner();
        loop {
            let message = tokio::select! {
                message = pieces.message() => message.map_err(failed)?,
                () = interrupt.stopped() => return Err(ImageError::Interrupted),
            };
            let Some(admin::Chunk { data, bytes, total }) = message else { return Ok(()) };
            output.write_all(&data).map_err(|error| output.failed(error))?;
            meter.tell(Progress { bytes, total, layers: 0 });
        }
    }

    pub(super) async fn prune(&self, all: bool, dry_run: bool) -> Result<admin::PruneResponse, ImageError> {
        let ask = admin::PruneRequest { all, dry_run };
        Ok(self.admin().prune(ask).await.map_err(failed)?.into_inner())
    }
}
