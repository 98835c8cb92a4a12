//! Instructions that the agent replaces before it loads the programs.

/// An instruction of a kernel program: code, registers, offset, and a value of 32 bits.
pub type Instruction = [u8; 8];

/// Stands for a call of `bpf_rdonly_cast`, with a type id that no kernel has.
pub const CAST_CALL: Instruction = [0x85, 0x20, 0, 0, 0x01, 0x70, 0xa5, 0x7c];

/// Stands for the same call with a pointer that has its type already: where there is no such function, nothing is to be done.
pub const RECAST_CALL: Instruction = [0x85, 0x20, 0, 0, 0x02, 0x70, 0xa5, 0x7c];
