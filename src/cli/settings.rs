//! `crisp config` and `crisp version`: print the settings in effect, and the version of the
//! program.

use std::io::{self, Write as _};

use config::RawConfig;
use serde_json::json;

use super::command::CommandError;
use super::common_args::CommonArgs;
use super::output;

/// Arguments of `crisp config`.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    #[command(flatten)]
    settings: CommonArgs,
    /// Print the settings as JSON, with the keys of crisp.toml.
    #[arg(long)]
    json: bool,
}

/// Arguments of `crisp version`.
#[derive(Debug, clap::Args)]
pub struct VersionArgs {
    /// Print version and commit as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the settings. Invalid ones are printed too, and then refused as by `crisp serve`.
pub fn config(args: ConfigArgs) -> Result<(), CommandError> {
    let ConfigArgs { settings, json } = args;
    let raw = settings.load()?;
    let text = if json { as_json(&raw) } else { toml::to_string(&raw).map_err(io::Error::other) };
    text.and_then(|text| output::stdout().write_all(text.as_bytes())).map_err(CommandError::Print)?;
    raw.resolve()?;
    Ok(())
}

fn as_json(raw: &RawConfig) -> io::Result<String> {
    Ok(serde_json::to_string_pretty(raw)? + "\n")
}

/// Prints version and commit of this program; `commit` is None if the build does not know it.
pub fn version(args: &VersionArgs, commit: Option<&str>) -> io::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = output::stdout();
    match (args.json, commit) {
        (true, commit) => {
            serde_json::to_writer_pretty(&mut out, &json!({ "version": version, "commit": commit }))?;
            writeln!(out)
        }
        (false, Some(commit)) => writeln!(out, "crisp {version}, commit {commit}"),
        (false, None) => writeln!(out, "crisp {version}"),
    }
}
