//! Touches memory that was allocated and not used yet: its first use makes the kernel find a page, which on a full node
//! takes long.

use std::{hint::black_box, mem::MaybeUninit};

/// The free places of a queue. Nothing comes out of it for that.
pub(super) fn touch_queue<T>(queue: &mut rtrb::Producer<T>) {
    let free = queue.slots();
    if let Ok(mut chunk) = queue.write_chunk_uninit(free) {
        let (first, second) = chunk.as_mut_slices();
        touch(first);
        touch(second);
    }
}

/// Places that hold no value.
pub(super) fn touch<T>(places: &mut [MaybeUninit<T>]) {
    for place in &mut *places {
        *place = MaybeUninit::zeroed();
    }
    black_box(places);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the kernel has all pages of a range in memory (mincore(2)).
    fn are_resident<T>(values: &[T]) -> bool {
        let (start, end) = (values.as_ptr() as usize, values.as_ptr_range().end as usize);
        let (from, to) = (start & !4095, end.next_multiple_of(4096));
        let mut present = vec![0_u8; (to - from) / 4096];
        // SAFETY: the range is mapped, and there is a byte for each of its pages.
        let result =
            unsafe { libc::mincore(from as *mut libc::c_void, to - from, present.as_mut_ptr()) };
        assert_eq!(result, 0);
        present.iter().all(|page| page & 1 == 1)
    }

    #[test]
    fn what_was_touched_is_in_memory() {
        let mut room: Vec<[u64; 8]> = Vec::with_capacity(1 << 20);
        assert!(
            !are_resident(room.spare_capacity_mut()),
            "it was used before"
        );
        touch(room.spare_capacity_mut());
        assert!(are_resident(room.spare_capacity_mut()));
        assert_eq!(room.len(), 0);
    }

    #[test]
    fn a_queue_stays_empty() {
        let (mut queue, mut out) = rtrb::RingBuffer::<u64>::new(5);
        queue.push(7).unwrap();
        touch_queue(&mut queue);
        assert_eq!(out.pop(), Ok(7));
        assert!(out.pop().is_err());
        for value in 0..5 {
            queue.push(value).unwrap();
        }
        touch_queue(&mut queue);
        assert_eq!(out.pop(), Ok(0));
    }
}
