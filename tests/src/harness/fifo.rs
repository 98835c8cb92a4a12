//! A thread that measures does not wait for a CPU like those that it measures.

use std::io;

/// Makes the calling thread SCHED_FIFO with this priority; what it starts is ordinary.
pub(crate) fn make_fifo(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: affects the calling thread only; the pointer is to a live value.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
