//! Structures of the kernel by their address alone.

use podwarden_abi::{CAST_CALL, RECAST_CALL};

use super::{member, read_at};

/// A structure; what its memory no longer has reads as 0 or as something else, and cannot fault.
pub(crate) trait Structure: Copy {
    /// Whether [`Structure::touch`] is worth its instructions.
    const TOUCHES: bool;

    /// The structure at `address`, whose type has the id `of` in the kernel's BTF.
    fn at(address: u64, of: u64) -> Self;

    fn address(self) -> u64;

    /// The structure that the member at `offset` points to.
    fn pointer(self, offset: u64) -> Self;

    fn word(self, offset: u64) -> u64;

    /// An `int` that is not negative.
    fn int(self, offset: u64) -> u64;

    /// A `bool`; false where it cannot be read.
    fn flag(self, offset: u64) -> bool;

    /// Copies words that follow one another; false where they cannot be read.
    fn words<const N: usize>(self, offset: u64, to: &mut [u64; N]) -> bool;

    /// Has the processor load what is at `offset`, while the program goes on.
    #[inline(always)]
    fn touch(self, offset: u64) {
        if Self::TOUCHES {
            self.word(offset);
        }
    }

    /// The same for a `bool`: a word reaches beyond it, which the verifier refuses.
    #[inline(always)]
    fn touch_flag(self, offset: u64) {
        if Self::TOUCHES {
            self.flag(offset);
        }
    }
}

/// Gives `$from`, a pointer or an address, the type with the id `$of`, by an instruction in whose place the agent writes a
/// call of `bpf_rdonly_cast` with its right id: neither rustc nor aya have relocations for such a call.
macro_rules! cast {
    ($call:expr, $from:expr, $of:expr) => {{
        let typed: *const u8;
        // SAFETY: the verifier replaces the call by a move; the pointer's loads cannot fault.
        unsafe {
            core::arch::asm!(
                ".8byte {call}",
                call = const u64::from_le_bytes($call),
                inlateout("r1") $from => _,
                inlateout("r2") $of => _,
                lateout("r0") typed,
                lateout("r3") _,
                lateout("r4") _,
                lateout("r5") _,
            );
        }
        typed
    }};
}

/// Has the verifier trust a pointer no longer, whose type has the id `of`. It searches the kernel's types for each pointer
/// that is loaded through one that it trusts, several times and on each path that it follows
/// (`btf_nested_type_is_trusted`, kernel/bpf/btf.c): that made up most of the time that the programs took to load.
#[inline(always)]
pub(super) fn untrusted(pointer: *const u8, of: u64) -> *const u8 {
    cast!(RECAST_CALL, pointer, of)
}

/// A pointer that `bpf_rdonly_cast` (kernel/bpf/helpers.c, Linux 6.2) has given a type. A load through it is one of the
/// processor's, where [`Plain`] calls two functions of the kernel.
#[derive(Clone, Copy)]
pub(crate) struct Typed(*const u8);

impl Structure for Typed {
    const TOUCHES: bool = true;

    #[inline(always)]
    fn at(address: u64, of: u64) -> Self {
        Self(cast!(CAST_CALL, address, of))
    }

    #[inline(always)]
    fn address(self) -> u64 {
        self.0 as u64
    }

    #[inline(always)]
    fn pointer(self, offset: u64) -> Self {
        Self(member(self.0, offset))
    }

    #[inline(always)]
    fn word(self, offset: u64) -> u64 {
        member(self.0, offset)
    }

    #[inline(always)]
    fn int(self, offset: u64) -> u64 {
        u64::from(member::<u32>(self.0, offset))
    }

    #[inline(always)]
    fn flag(self, offset: u64) -> bool {
        member::<u8>(self.0, offset) != 0
    }

    #[inline(always)]
    fn words<const N: usize>(self, offset: u64, to: &mut [u64; N]) -> bool {
        for (place, word) in to.iter_mut().enumerate() {
            *word = self.word(offset + (place * size_of::<u64>()) as u64);
        }
        true
    }
}

/// An address that helpers read.
#[derive(Clone, Copy)]
pub(crate) struct Plain(u64);

impl Structure for Plain {
    const TOUCHES: bool = false;

    #[inline(always)]
    fn at(address: u64, _of: u64) -> Self {
        Self(address)
    }

    #[inline(always)]
    fn address(self) -> u64 {
        self.0
    }

    #[inline(always)]
    fn pointer(self, offset: u64) -> Self {
        Self(self.word(offset))
    }

    #[inline(always)]
    fn word(self, offset: u64) -> u64 {
        read_at(self.0 + offset).unwrap_or(0)
    }

    #[inline(always)]
    fn int(self, offset: u64) -> u64 {
        u64::from(read_at::<u32>(self.0 + offset).unwrap_or(0))
    }

    #[inline(always)]
    fn flag(self, offset: u64) -> bool {
        read_at::<u8>(self.0 + offset).is_some_and(|flag| flag != 0)
    }

    #[inline(always)]
    fn words<const N: usize>(self, offset: u64, to: &mut [u64; N]) -> bool {
        let words = read_at(self.0 + offset);
        if let Some(words) = words {
            *to = words;
        }
        words.is_some()
    }
}
