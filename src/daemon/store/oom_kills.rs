//! The OOM kills in a container that were counted already.

use sync::Mutex;

/// The OOM kills in one container, of which the kernel has the number.
#[derive(Debug, Default)]
pub(crate) struct OomKillCursor(Mutex<CountedKills>);

#[derive(Debug, Default)]
struct CountedKills {
    /// The kernel's number when it was last read.
    read: u64,
    /// Those that this daemon has counted.
    counted: u64,
}

impl OomKillCursor {
    /// Skips the kills before the start of the daemon.
    pub(crate) fn skip(&self, read: u64) {
        self.0.lock().read = read;
    }

    /// Returns how many kills there are that were not counted yet. `read` is the kernel's number, if it has one.
    /// `is_killed`: the container ended by an OOM kill, which counts also if the number is not known any more.
    pub(crate) fn advance(&self, read: Option<u64>, is_killed: bool) -> u64 {
        let mut this = self.0.lock();
        let read = read.unwrap_or(this.read).max(this.read);
        let mut new = read - this.read;
        if is_killed && this.counted == 0 {
            new = new.max(1);
        }
        this.read = read;
        this.counted += new;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_is_counted_once_and_not_again_by_the_next_daemon() {
        let container = OomKillCursor::default();
        assert_eq!(container.advance(Some(0), false), 0);
        assert_eq!(container.advance(Some(2), false), 2);
        assert_eq!(container.advance(Some(2), false), 0);
        assert_eq!(container.advance(Some(3), true), 1);
        assert_eq!(container.advance(None, true), 0);
        let recovered = OomKillCursor::default();
        recovered.skip(3);
        assert_eq!(recovered.advance(Some(3), false), 0);
        assert_eq!(recovered.advance(Some(4), false), 1);
        let unread = OomKillCursor::default();
        assert_eq!((unread.advance(None, true), unread.advance(None, true)), (1, 0));
    }
}
