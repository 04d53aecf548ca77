//! `crisp completions` and `crisp man`: shell completions and manual pages, generated from the
//! command definitions.

use std::io;
use std::path::PathBuf;

use clap_complete::Shell;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  bash  crisp completions bash > /etc/bash_completion.d/crisp
  zsh   crisp completions zsh > /usr/local/share/zsh/site-functions/_crisp
  fish  crisp completions fish > /etc/fish/completions/crisp.fish")]
pub struct CompletionsArgs {
    /// Shell to generate completions for.
    #[arg(value_enum)]
    shell: CompletedShell,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum CompletedShell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Output directory, such as /usr/local/share/man/man1; created if missing.
    directory: PathBuf,
}

/// Manual pages could not be written.
#[derive(Debug, thiserror::Error)]
#[error("writing manual pages to {}", directory.display())]
pub struct ManError {
    directory: PathBuf,
    source: io::Error,
}

/// Prints the completion script for one shell.
pub fn completions(args: &CompletionsArgs, mut command: clap::Command) -> io::Result<()> {
    let shell = match args.shell {
        CompletedShell::Bash => Shell::Bash,
        CompletedShell::Zsh => Shell::Zsh,
        CompletedShell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "crisp", &mut script);
    io::Write::write_all(&mut crate::output::stdout(), &script)
}

/// Writes a manual page for crisp and one for each command that is not hidden.
pub fn man(args: &ManArgs, command: clap::Command) -> Result<(), ManError> {
    let failed = |source| ManError { directory: args.directory.clone(), source };
    std::fs::create_dir_all(&args.directory).map_err(failed)?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), &args.directory).map_err(failed)
}
