//! What runs in the pods of `crisp demo` and `crisp check --live`: it works, holds memory, and does as it is told.

use std::fs;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

/// Mebibytes that are to be held, and that are.
const WANTED: &str = "/hold";
const HELD: &str = "/held";
const LOOK_EVERY: Duration = Duration::from_millis(20);
const PAGE: usize = 4096;
/// Blocks as large as this go back to the kernel at once, in bytes.
const LARGE: i32 = 256 << 10;
/// Touching memory may take its time where there is hardly enough.
const WITHIN: Duration = Duration::from_secs(50);

#[derive(Debug, clap::Args)]
pub struct WorkloadArgs {
    #[command(subcommand)]
    word: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Wait to be stopped.
    Idle,
    /// Keep one CPU busy, hold memory as told, and wait to be stopped.
    Work,
    /// Tell the one that works how much memory to hold, and wait until it does.
    Hold { mib: usize },
    /// Print a word.
    Say { word: String },
}

/// Does as told.
pub fn run_workload(args: WorkloadArgs) -> io::Result<()> {
    match args.word {
        Command::Idle => wait(false),
        Command::Work => {
            if !sys::malloc::return_from(LARGE) {
                return Err(io::Error::other("memory that is given back would stay with the allocator"));
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

/// Until SIGTERM: the first process of a container ends by no signal that it has no hand for.
fn wait(holding: bool) -> io::Result<()> {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio.block_on(async {
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
    })
}

/// Takes or gives back as much memory as is wanted.
fn follow(memory: &mut Vec<Vec<u8>>) -> io::Result<()> {
    let wanted = fs::read_to_string(WANTED).ok().and_then(|text| text.trim().parse::<usize>().ok());
    let Some(wanted) = wanted.filter(|wanted| *wanted != memory.len()) else { return Ok(()) };
    memory.truncate(wanted);
    while memory.len() < wanted {
        let mut piece = vec![0_u8; 1 << 20];
        // Memory is had from the first write on.
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
            return Err(io::Error::other(format!("{mib} MiB are still not held")));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    writeln!(io::stdout(), "{mib}")
}
