//! Locks, and threads for work that blocks.
//!
//! [`Mutex`], [`RwLock`] and [`Condvar`] are those of std without poisoning: a panic while a lock is held does not make
//! every later request fail. Data behind these locks is changed in one step, so a panic leaves no inconsistent value.
//! [`KeyedLock`] serialises work on the same key. [`threads`] runs work that blocks.
#![forbid(unsafe_code)]

#[cfg(feature = "keyed-lock")]
mod keyed_lock;
mod lock;
#[cfg(feature = "threads")]
pub mod threads;

#[cfg(feature = "keyed-lock")]
pub use keyed_lock::{KeyedGuard, KeyedLock};
pub use lock::{Condvar, Mutex, RwLock};
