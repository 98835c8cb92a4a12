//! The kernel's function that gives a pointer a type, `bpf_rdonly_cast` (kernel/bpf/helpers.c, Linux 6.2), in the programs.
//!
//! Neither rustc nor aya have relocations for a call of a kernel's function. The programs have an instruction with a type
//! id that no kernel has in its place, and the object is rewritten before it is loaded.

use podwarden_abi::{CAST_CALL, Instruction, RECAST_CALL};

use super::btf::KernelBtf;

/// What `PODWARDEN_DISABLE` calls typed pointers.
pub const CASTS: &str = "casts";

const FUNCTION: &str = "bpf_rdonly_cast";

/// `r0 = r1`: what has a type keeps it. Where something should be given one, the program does not come there.
const MOVE: Instruction = [0xbf, 0x10, 0, 0, 0, 0, 0, 0];

/// How this kernel's programs give pointers a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Casts(Option<u32>);

impl Casts {
    /// Without types helpers read what the verifier knows no type of.
    pub(super) const NONE: Self = Self(None);

    /// Looks the function up in this kernel's types.
    pub(super) fn of(btf: &KernelBtf) -> Self {
        Self(btf.func_id(FUNCTION))
    }

    /// Whether an address can get a type.
    pub(super) fn are_known(self) -> bool {
        self.0.is_some()
    }

    /// The programs' object for this kernel.
    pub(super) fn put_into(self, object: &[u8]) -> Vec<u8> {
        let mut object = object.to_vec();
        // Instructions stand at multiples of their own length.
        for instruction in object.chunks_exact_mut(size_of::<Instruction>()) {
            let replaced = match self.0 {
                Some(id) if instruction == CAST_CALL || instruction == RECAST_CALL => {
                    let mut call = CAST_CALL;
                    call[4..].copy_from_slice(&id.to_le_bytes());
                    call
                }
                None if instruction == CAST_CALL || instruction == RECAST_CALL => MOVE,
                _ => continue,
            };
            instruction.copy_from_slice(&replaced);
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: Instruction = [0x85, 0x20, 0, 0, 1, 0, 0, 0];

    #[test]
    fn each_call_gets_the_kernels_own_id() {
        let object = [OTHER, CAST_CALL, OTHER, RECAST_CALL].concat();
        let call = [0x85, 0x20, 0, 0, 4, 3, 2, 1];
        let with = Casts(Some(0x0102_0304)).put_into(&object);
        assert_eq!(with, [OTHER, call, OTHER, call].concat());
    }

    #[test]
    fn without_the_function_a_typed_pointer_stays_what_it_is() {
        let object = [CAST_CALL, OTHER, RECAST_CALL].concat();
        let without = Casts::NONE.put_into(&object);
        assert_eq!(without, [MOVE, OTHER, MOVE].concat());
    }

    #[test]
    fn the_programs_have_such_calls() {
        let object = crate::kernel::loader::OBJECT;
        let calls = |object: &[u8], call| {
            let instructions = object.chunks_exact(size_of::<Instruction>());
            instructions.filter(|one| **one == call).count()
        };
        for call in [CAST_CALL, RECAST_CALL] {
            let found = calls(object, call);
            // Built without the kernel programs there is nothing to look at.
            assert!(object.is_empty() || found > 3, "{found}");
            assert_eq!(calls(&Casts(Some(7)).put_into(object), call), 0);
        }
    }
}
