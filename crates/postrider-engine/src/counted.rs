//! For tests: how much memory this thread holds.

#![expect(unsafe_code, reason = "an allocator cannot be had otherwise; it passes everything on to the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counted;

#[global_allocator]
static COUNTED: Counted = Counted;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
}

/// What this thread has taken and not given back.
pub(crate) fn live() -> usize {
    LIVE.get()
}

/// What the system's allocator takes for so many bytes: a word more, in steps of two words, four at least.
fn taken(layout: Layout) -> usize {
    (layout.size() + 8).next_multiple_of(16).max(32)
}

/// What one thread gives back for another wraps around, and comes out right in the difference.
fn count(change: impl FnOnce(usize) -> usize) {
    // A thread that ends has nothing to count with any more.
    let _ = LIVE.try_with(|live| live.set(change(live.get())));
}

// SAFETY: both pass on what they are given, unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|live| live.wrapping_add(taken(layout)));
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(|live| live.wrapping_sub(taken(layout)));
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}
