//! Reads many files in parallel: most of the time of a long list is spent in the kernel.

use std::num::NonZeroUsize;

/// Threads per list.
const MOST: usize = 4;
/// A shorter list is read faster than a thread is started.
const SHORTEST: usize = 12;

/// Maps `read` over `items`, in order; long lists are read in parallel parts.
pub(super) fn read<T: Sync, R: Send>(items: &[T], read: impl Fn(&[T]) -> Vec<R> + Sync) -> Vec<R> {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let parts = (items.len() / SHORTEST).clamp(1, processors.min(MOST));
    let mut pieces = items.chunks(items.len().div_ceil(parts).max(1));
    let own = pieces.next().unwrap_or_default();
    let read = &read;
    std::thread::scope(|scope| {
        // If a thread cannot be started, its part is read here.
        let start = |piece| (piece, std::thread::Builder::new().spawn_scoped(scope, move || read(piece)));
        let others: Vec<_> = pieces.map(start).collect();
        let mut all = read(own);
        for (piece, thread) in others {
            match thread.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(part)) => all.extend(part),
                Ok(Err(panicked)) => std::panic::resume_unwind(panicked),
                Err(_) => all.extend(read(piece)),
            }
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_any_length_is_read_once_and_in_order() {
        for length in (0..100).chain([1000]) {
            let items: Vec<usize> = (0..length).collect();
            let doubled = read(&items, |part| part.iter().map(|item| item * 2).collect());
            assert_eq!(doubled, items.iter().map(|item| item * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_short_list_is_read_in_one_part() {
        let parts = read(&[1; SHORTEST], |part| vec![part.len()]);
        assert_eq!(parts, [SHORTEST]);
    }

    #[test]
    fn skipped_items_are_missing_from_the_result() {
        let items: Vec<usize> = (0..200).collect();
        let odd = read(&items, |part| part.iter().copied().filter(|item| item % 2 == 1).collect());
        assert_eq!(odd.len(), 100);
    }
}
