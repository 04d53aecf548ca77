//! The workload in the pods of `crisp demo` and `crisp check --live`: uses CPU and holds memory on command.

use std::fs;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use super::super::command;
use tokio::signal::unix::{SignalKind, signal};

/// Files with the MiB of memory to hold, and the MiB held now.
const WANTED: &str = "/hold";
const HELD: &str = "/held";
const LOOK_EVERY: Duration = Duration::from_millis(20);
const PAGE: usize = 4096;
/// malloc returns freed blocks of this size, in bytes, to the kernel at once.
const LARGE: i32 = 256 << 10;
/// Time to allocate the memory; page faults are slow near the memory limit.
const WITHIN: Duration = Duration::from_secs(50);

#[derive(Debug, clap::Args)]
pub struct WorkloadArgs {
    #[command(subcommand)]
    word: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Internal: wait for SIGTERM, as the program of a test pod.
    Idle,
    /// Keep one CPU busy and hold as much memory as `hold` has set, until SIGTERM.
    Work,
    /// Set how much memory the process `work` holds, and wait until it does.
    Hold { mib: usize },
    /// Internal: print a word, for the log of a test pod.
    Say { word: String },
}

/// Runs a command of the workload.
pub fn run_workload(args: WorkloadArgs) -> io::Result<()> {
    match args.word {
        Command::Idle => wait(false),
        Command::Work => {
            if !sys::malloc::return_from(LARGE) {
                return Err(io::Error::other("cannot configure malloc to return freed memory to the kernel"));
            }
            std::thread::spawn(|| {
                loop {
                    std::hint::black_box(0_u8);
                }
            });
            wait(true)
        }
        Command::Hold { mib } => hold(mib),
        Command::Say { word } => writeln!(io::stdout(), "{word}"),
    }
}

/// Waits for SIGTERM. It needs a handler: the kernel ignores signals without one for PID 1 of a PID namespace.
fn wait(holding: bool) -> io::Result<()> {
    command::run(async {
        let mut stop = signal(SignalKind::terminate())?;
        let mut out = io::stdout();
        writeln!(out, "ready")?;
        out.flush()?;
        let mut memory: Vec<Vec<u8>> = Vec::new();
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                _ = stop.recv() => return Ok(()),
                _ = look.tick(), if holding => follow(&mut memory)?,
            }
        }
    })?
}

/// Allocates or frees memory until it holds the amount in `WANTED`.
fn follow(memory: &mut Vec<Vec<u8>>) -> io::Result<()> {
    let wanted = fs::read_to_string(WANTED).ok().and_then(|text| text.trim().parse::<usize>().ok());
    let Some(wanted) = wanted.filter(|wanted| *wanted != memory.len()) else { return Ok(()) };
    memory.truncate(wanted);
    while memory.len() < wanted {
        let mut piece = vec![0_u8; 1 << 20];
        // The kernel allocates a page at the first write to it.
        piece.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        memory.push(piece);
    }
    fs::write(HELD, wanted.to_string())
}

fn hold(mib: usize) -> io::Result<()> {
    fs::write(WANTED, mib.to_string())?;
    let begin = Instant::now();
    while fs::read_to_string(HELD).ok().as_deref() != Some(&mib.to_string()) {
        if begin.elapsed() > WITHIN {
            return Err(io::Error::other(format!("the workload does not hold {mib} MiB after {} s", WITHIN.as_secs())));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    writeln!(io::stdout(), "{mib}")
}
