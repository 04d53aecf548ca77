//! stdout and stderr of a command. A closed pipe is not an error: later output is discarded, and the command completes.

use std::io::{self, Stderr, Stdout, Write};

/// A stream whose reader may close it at any time, such as `head`.
#[derive(Debug)]
pub struct Output<W>(W);

pub fn stdout() -> Output<Stdout> {
    Output(io::stdout())
}

pub(crate) fn stderr() -> Output<Stderr> {
    Output(io::stderr())
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(bytes.len()),
            other => other,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_to_a_closed_pipe_is_discarded() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut output = Output(writer);
        output.write_all(b"line\n").unwrap();
        output.flush().unwrap();
    }

    #[test]
    fn other_errors_are_reported() {
        let mut output = Output(std::fs::File::options().write(true).open("/dev/full").unwrap());
        assert_eq!(output.write_all(b"line\n").unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
