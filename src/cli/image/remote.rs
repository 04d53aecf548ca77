//! Works on images through a running daemon.

use std::io::Write as _;
use std::path::Path;

use ::image::{Compress, Progress};
use cri_api::admin::images_client::ImagesClient;
use cri_api::v1::image_service_client::ImageServiceClient;
use cri_api::{admin, v1};
use daemon::grpc::REQUEST_MAX;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::ImageError;
use super::output_file::OutputFile;
use crate::client::{self, ConnectError};
use crate::progress_bar::ProgressBar;
use crate::signals::Interrupt;

/// HTTP/2 window for an archive, in bytes.
const WINDOW: u32 = 4 << 20;

/// Connection to a daemon.
pub(crate) struct RemoteStore {
    channel: Channel,
}

/// Converts the status of a call that failed before its first answer.
fn failed(status: Status) -> ImageError {
    match status.code() {
        // Every daemon of this version implements these calls.
        Code::Unimplemented => ImageError::OtherDaemon(Box::new(status)),
        _ => ImageError::Daemon(Box::new(status)),
    }
}

impl RemoteStore {
    pub(crate) async fn connect(socket: &Path) -> Result<Self, ConnectError> {
        let windows =
            |endpoint: Endpoint| endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
        Ok(Self { channel: client::open(socket, windows).await? })
    }

    fn cri(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone()).max_decoding_message_size(REQUEST_MAX)
    }

    fn admin(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.channel.clone()).max_decoding_message_size(REQUEST_MAX)
    }

    pub(crate) async fn list(&self) -> Result<Vec<v1::Image>, ImageError> {
        let listed = self.cri().list_images(v1::ListImagesRequest::default()).await;
        Ok(listed.map_err(failed)?.into_inner().images)
    }

    /// Removes a tag, or an image with all its tags; None if it does not exist.
    pub(crate) async fn remove(&self, name: &str, all_tags: bool) -> Result<Option<admin::RemoveResponse>, ImageError> {
        let ask = admin::RemoveRequest { name: name.to_owned(), all_tags };
        match self.admin().remove(ask).await {
            Ok(removed) => Ok(Some(removed.into_inner())),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(failed(status)),
        }
    }

    pub(crate) async fn import(
        &self,
        path: &Path,
        name: Option<&str>,
        progress_bar: &ProgressBar,
        interrupt: &Interrupt,
    ) -> Result<Vec<admin::Image>, ImageError> {
        let path = path.to_str().ok_or_else(|| ImageError::Path(path.to_owned()))?.to_owned();
        let ask = admin::ImportRequest { path, name: name.unwrap_or_default().to_owned() };
        let messages = self.admin().import(ask).await.map_err(failed)?.into_inner();
        imported(messages, progress_bar, interrupt).await
    }

    pub(crate) async fn export(
        &self,
        names: &[String],
        compress: Compress,
        output: &mut OutputFile,
        progress_bar: &ProgressBar,
        interrupt: &Interrupt,
    ) -> Result<(), ImageError> {
        let compression = match compress {
            Compress::No => admin::Compression::None,
            Compress::Gzip => admin::Compression::Gzip,
            Compress::Zstd => admin::Compression::Zstd,
        };
        let ask = admin::ExportRequest { names: names.to_vec(), compression: compression.into() };
        let pieces = self.admin().export(ask).await.map_err(failed)?.into_inner();
        exported(pieces, output, progress_bar, interrupt).await
    }

    pub(crate) async fn prune(&self, all: bool, dry_run: bool) -> Result<admin::PruneResponse, ImageError> {
        let ask = admin::PruneRequest { all, dry_run };
        Ok(self.admin().prune(ask).await.map_err(failed)?.into_inner())
    }
}

/// Returns the next message of a stream that is not done yet. Dropping the stream cancels the call.
async fn next<T>(
    stream: &mut (impl Stream<Item = Result<T, Status>> + Unpin),
    interrupt: &Interrupt,
) -> Result<T, ImageError> {
    let message = tokio::select! {
        message = stream.next() => message,
        () = interrupt.stopped() => return Err(ImageError::Interrupted),
    };
    message.ok_or(ImageError::CutShort)?.map_err(|status| ImageError::Daemon(Box::new(status)))
}

/// Reads the progress of an import to its end, and returns the images.
async fn imported(
    mut messages: impl Stream<Item = Result<admin::ImportProgress, Status>> + Unpin,
    progress_bar: &ProgressBar,
    interrupt: &Interrupt,
) -> Result<Vec<admin::Image>, ImageError> {
    loop {
        let admin::ImportProgress { bytes, total, layers, images, done } = next(&mut messages, interrupt).await?;
        progress_bar.update(Progress { bytes, total, layers });
        if done {
            return Ok(images);
        }
    }
}

/// Writes an archive until the daemon reports its end.
async fn exported(
    mut pieces: impl Stream<Item = Result<admin::Chunk, Status>> + Unpin,
    output: &mut OutputFile,
    progress_bar: &ProgressBar,
    interrupt: &Interrupt,
) -> Result<(), ImageError> {
    loop {
        let admin::Chunk { data, bytes, total, done } = next(&mut pieces, interrupt).await?;
        output.write_all(&data).map_err(|error| output.failed(error))?;
        progress_bar.update(Progress { bytes, total, layers: 0 });
        if done {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use tokio_stream::iter;

    use super::*;

    fn piece(data: &[u8], done: bool) -> Result<admin::Chunk, Status> {
        Ok(admin::Chunk { data: data.to_vec(), done, ..admin::Chunk::default() })
    }

    #[tokio::test]
    async fn an_export_is_complete_only_when_the_daemon_reports_it() {
        let dir = tempfile::tempdir().unwrap();
        let (file, interrupt) = (dir.path().join("a.tar"), Arc::<Interrupt>::default());
        let mut output = OutputFile::open(Some(&file), interrupt.clone()).unwrap();
        let cut = exported(iter([piece(b"a", false)]), &mut output, &ProgressBar::Silent, &interrupt).await;
        assert!(matches!(cut, Err(ImageError::CutShort)), "{cut:?}");
        drop(output);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let mut output = OutputFile::open(Some(&file), interrupt.clone()).unwrap();
        let pieces = [piece(b"a", false), piece(b"b", false), piece(b"", true)];
        exported(iter(pieces), &mut output, &ProgressBar::Silent, &interrupt).await.unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"ab");
    }

    #[tokio::test]
    async fn an_import_is_complete_only_when_the_daemon_reports_it() {
        let image = admin::Image { id: "a".into(), ..admin::Image::default() };
        let messages = |done| {
            let last = admin::ImportProgress { images: vec![image.clone()], done, ..admin::ImportProgress::default() };
            iter([Ok(admin::ImportProgress::default()), Ok(last)])
        };
        let interrupt = Interrupt::default();
        let cut = imported(messages(false), &ProgressBar::Silent, &interrupt).await;
        assert!(matches!(cut, Err(ImageError::CutShort)), "{cut:?}");
        let images = imported(messages(true), &ProgressBar::Silent, &interrupt).await.unwrap();
        assert_eq!((images.len(), images[0].id.as_str()), (1, "a"));
    }

    #[tokio::test]
    async fn only_unimplemented_calls_are_reported_as_another_version() {
        let messages = iter([Err(Status::unimplemented("media type text/plain"))]);
        let error = imported(messages, &ProgressBar::Silent, &Interrupt::default()).await.unwrap_err();
        assert_eq!(error.to_string(), "media type text/plain");
        let opening = failed(Status::unimplemented("unknown service")).to_string();
        assert!(opening.contains("not this version of crisp"), "{opening}");
    }
}
