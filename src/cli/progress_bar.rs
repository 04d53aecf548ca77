//! Progress output: a bar on a terminal, a line every 5 seconds elsewhere, nothing with `--quiet`.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use ::image::Progress;
use indicatif::{HumanBytes, ProgressDrawTarget, ProgressStyle};
use sync::Mutex;

/// Time between two lines if stderr is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
const STYLE: &str = "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";

pub(super) enum ProgressBar {
    Bar(indicatif::ProgressBar, &'static str),
    Lines(Mutex<Instant>, &'static str),
    Silent,
}

impl ProgressBar {
    /// Creates progress output; each line begins with `doing`.
    pub(super) fn new(doing: &'static str, quiet: bool) -> Self {
        if quiet {
            Self::Silent
        } else if io::stderr().is_terminal() {
            let bar = indicatif::ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            // STYLE is a constant; if it did not parse, only the appearance would change.
            bar.set_style(ProgressStyle::with_template(STYLE).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(doing);
            Self::Bar(bar, doing)
        } else {
            Self::Lines(Mutex::new(Instant::now()), doing)
        }
    }

    pub(super) fn update(&self, progress: Progress) {
        let Progress { bytes, total, layers } = progress;
        match self {
            Self::Bar(bar, doing) => {
                bar.set_length(total.max(bytes));
                bar.set_position(bytes);
                bar.set_message(format!("{doing}, {layers} layers done"));
            }
            Self::Lines(last, doing) => {
                let mut last = last.lock();
                if last.elapsed() >= LINE_EVERY {
                    *last = Instant::now();
                    let (bytes, total) = (HumanBytes(bytes), HumanBytes(total));
                    // A failed write of progress must not stop the work.
                    writeln!(io::stderr(), "{doing}: {bytes} of {total}, {layers} layers done").ok();
                }
            }
            Self::Silent => {}
        }
    }

    /// Clears the bar.
    pub(super) fn clear(&self) {
        if let Self::Bar(bar, _) = self {
            bar.finish_and_clear();
        }
    }
}
