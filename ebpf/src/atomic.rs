//! Atomic operations on map values.
//!
//! `core` offers none for this target (it serves kernels before 5.12 too, which lack the
//! instruction), so it is spelled out; BPF CPU v3 has it.

/// Replaces `*word` by `new` if it is `old`; true when it was. Fully ordered, as every BPF atomic that
/// returns a value (Documentation/bpf/standardization/instruction-set.rst, "Atomic operations").
///
/// # Safety
/// `word` must be an aligned word of a map value.
#[inline(always)]
pub(crate) unsafe fn compare_and_swap(word: *mut u64, old: u64, new: u64) -> bool {
    let found: u64;
    // SAFETY: writes only `*word`, which the caller vouches for.
    unsafe {
        core::arch::asm!(
            "r0 = cmpxchg_64({word} + 0, r0, {new})",
            word = in(reg) word,
            new = in(reg) new,
            inout("r0") old => found,
        );
    }
    found == old
}

/// `*word += n`.
///
/// # Safety
/// `word` must be an aligned word of a map value.
#[inline(always)]
pub(crate) unsafe fn add(word: *mut u64, n: u64) {
    // SAFETY: writes only `*word`, which the caller vouches for.
    unsafe {
        core::arch::asm!(
            "lock *(u64 *)({word} + 0) += {n}",
            word = in(reg) word,
            n = in(reg) n,
        );
    }
}
