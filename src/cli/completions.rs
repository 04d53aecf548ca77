//! Completions for shells, and pages for `man`.

use std::io;
use std::path::PathBuf;

use clap_complete::Shell;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
  bash  crisp completions bash > /etc/bash_completion.d/crisp
  zsh   crisp completions zsh > /usr/local/share/zsh/site-functions/_crisp
  fish  crisp completions fish > /etc/fish/completions/crisp.fish")]
pub struct CompletionsArgs {
    /// The shell that is to complete.
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
    /// Where the pages are written to, such as /usr/local/share/man/man1; made where it is missing.
    directory: PathBuf,
}

/// Prints a script for one shell.
pub fn completions(args: &CompletionsArgs, mut command: clap::Command) -> io::Result<()> {
    let shell = match args.shell {
        CompletedShell::Bash => Shell::Bash,
        CompletedShell::Zsh => Shell::Zsh,
        CompletedShell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "crisp", &mut script);
    io::Write::write_all(&mut io::stdout(), &script)
}

/// Writes a page for crisp and one for each verb that is not hidden.
pub fn man(args: &ManArgs, command: clap::Command) -> io::Result<()> {
    std::fs::create_dir_all(&args.directory)?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), &args.directory)
}
