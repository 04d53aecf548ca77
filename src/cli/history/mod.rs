//! `crisp history`: lists the resizes of pods and containers.

mod print;

use std::io;

use cri_api::admin::{ListResizesRequest, Resize};
use print::Printer;
use tonic::Streaming;

use super::client::{Cri, call};
use super::command::{self, CommandError};
use super::common_args::CommonArgs;
use super::output;
use super::target::{self, Target};

/// Arguments of `crisp history`.
#[derive(Debug, clap::Args)]
pub struct HistoryArgs {
    #[command(flatten)]
    settings: CommonArgs,
    /// Pod or container: name, NAMESPACE/POD, POD/CONTAINER, NAMESPACE/POD/CONTAINER, ID or unique prefix of an ID;
    /// without it, the resizes of all pods are listed.
    #[arg(value_name = "POD|CONTAINER")]
    target: Option<String>,
    /// Also print later resizes, until interrupted.
    #[arg(long, short)]
    follow: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// Runs `crisp history`.
pub fn history(args: HistoryArgs) -> Result<(), CommandError> {
    let HistoryArgs { settings, target, follow, json } = args;
    let config = settings.load()?;
    command::run(async {
        let cri = Cri::connect(&config.listen).await?;
        let id = match target {
            Some(word) => match target::find(&cri, &word).await? {
                Target::Container(id) | Target::Pod(id) => id,
            },
            None => String::new(),
        };
        let answer = cri.resizes().list_resizes(ListResizesRequest { id, follow }).await;
        let resizes = answer.map_err(call("listing resizes"))?.into_inner();
        let printer = Printer::new(json);
        if follow { each(resizes, printer).await } else { all(resizes, printer).await }
    })
    .map_err(CommandError::Start)?
}

/// Prints the resizes by time, in columns of the needed width.
async fn all(mut resizes: Streaming<Resize>, mut printer: Printer) -> Result<(), CommandError> {
    let mut found = Vec::new();
    while let Some(resize) = resizes.message().await.map_err(call("listing resizes"))? {
        found.push(resize);
    }
    found.sort_by_key(|resize| resize.began_ns);
    printer.print(&mut output::stdout(), &found).map_err(CommandError::Print)
}

/// Prints each resize as it arrives, until the daemon exits or the reader of stdout closes the pipe.
async fn each(mut resizes: Streaming<Resize>, mut printer: Printer) -> Result<(), CommandError> {
    while let Some(resize) = resizes.message().await.map_err(call("following resizes"))? {
        match printer.print(&mut io::stdout().lock(), &[resize]) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            printed => printed.map_err(CommandError::Print)?,
        }
    }
    Ok(())
}
