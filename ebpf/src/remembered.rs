//! Up to where each task has been accounted, so that a context switch that the kernel does not trace loses nothing.
//!
//! What is remembered of a task is at the place that its address gives, or in the kernel's task storage where another task
//! has that place. A place is read by loads; the storage by a call that alone takes a quarter of a context switch's time.

use podwarden_abi::{Remembered, TaskPlace, Used};

use crate::{
    atomic::compare_and_swap,
    kernel::Task,
    maps::{TASK_PLACES, TASKS},
};

/// The place that a task's address gives; another task may have it.
#[inline(always)]
fn place<'a>(task: Task) -> Option<&'a mut TaskPlace> {
    // SAFETY: a map value; only aligned words of it are touched. The writers of a task's memory are the CPU that it runs on
    // with interrupts off, and by compare-and-swap a move (under the kernel's lock for moves) and the task's own exit.
    TASK_PLACES
        .get_ptr_mut(task.hash(TaskPlace::BITS))
        .map(|place| unsafe { &mut *place })
}

#[inline(always)]
fn own_place<'a>(task: Task) -> Option<&'a mut TaskPlace> {
    place(task).filter(|place| place.task == task.address())
}

/// What is remembered of a task. One load shows that nothing is stored with it, for most tasks.
#[inline(always)]
pub(crate) fn of<'a>(task: Task) -> Option<&'a mut Remembered> {
    if let Some(place) = own_place(task) {
        return Some(&mut place.known);
    }
    if !task.has_storage() {
        return None;
    }
    // SAFETY: as for a place.
    TASKS.get(task).map(|known| unsafe { &mut *known })
}

/// Whether something is remembered of a task, or another program has stored something with it.
#[inline(always)]
pub(crate) fn may_be_of(task: Task) -> bool {
    own_place(task).is_some() || task.has_storage()
}

/// What is remembered of a task from now on. It may run meanwhile.
#[inline(always)]
pub(crate) fn of_or_new<'a>(task: Task) -> Option<&'a mut Remembered> {
    if let Some(known) = of(task) {
        return Some(known);
    }
    if let Some(known) = claim(task) {
        return Some(known);
    }
    // SAFETY: as for a place.
    TASKS
        .get_or_insert(task, Remembered::default())
        .map(|known| unsafe { &mut *known })
}

/// Remembers that a task which nothing is remembered of has been accounted up to `used`, where its place is free. Not
/// with the task, which takes a call.
#[inline(always)]
pub(crate) fn begin(task: Task, used: Used) {
    if let Some(known) = claim(task) {
        *known = Remembered::of(used);
    }
}

/// A task's place from now on, where that was free.
#[inline(always)]
fn claim<'a>(task: Task) -> Option<&'a mut Remembered> {
    let place = place(task).filter(|place| place.task == 0)?;
    // SAFETY: an aligned word of a map value.
    let claimed = unsafe { compare_and_swap(&raw mut place.task, 0, task.address()) };
    claimed.then_some(&mut place.known)
}

/// A task has gone, or one has come to the address of a task whose end was not seen.
#[inline(always)]
pub(crate) fn forget(task: Task) {
    if let Some(place) = own_place(task) {
        place.known = Remembered::default();
        // SAFETY: an aligned word of a map value. Fully ordered: a place is free when it remembers nothing.
        unsafe { compare_and_swap(&raw mut place.task, task.address(), 0) };
    }
}
