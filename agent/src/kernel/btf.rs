//! Facts from the running kernel's BTF: where structure members are, what tracepoints hand over.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    fs::File,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
};

use aya_obj::btf::BtfKind;
use btf_rs::{Backend, Btf, BtfType, Struct, Type};
use nix::sys::memfd::{MFdFlags, memfd_create};
use regex::Regex;

/// Where the kernel publishes its types.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Why BTF could not be read.
#[derive(Debug, thiserror::Error)]
#[error("reading kernel types from {path}")]
pub struct BtfError {
    path: String,
    #[source]
    source: btf_rs::Error,
}

/// The kernel's types. Parsed data is dropped with it: load, ask, drop.
pub struct KernelBtf {
    btf: Btf,
    /// Looking for a name is a walk through all of the types, some 100,000.
    ids: RefCell<HashMap<String, Vec<u32>>>,
}

impl std::fmt::Debug for KernelBtf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KernelBtf")
    }
}

impl KernelBtf {
    /// Reads [`VMLINUX`], which needs a kernel with `CONFIG_DEBUG_INFO_BTF`.
    pub fn load() -> Result<Self, BtfError> {
        Self::from_file(Path::new(VMLINUX))
    }

    pub fn from_file(path: &Path) -> Result<Self, BtfError> {
        // Mapped where the kernel allows it (sysfs BTF since 6.16), else a copy is.
        Btf::from_file_with_backend(path, Backend::Mmap)
            .or_else(|_| match copy(path) {
                Ok(copy) => Btf::from_file_with_backend(
                    format!("/proc/self/fd/{}", copy.as_raw_fd()),
                    Backend::Mmap,
                ),
                Err(_) => Btf::from_file(path),
            })
            .map(Self::new)
            .map_err(|source| BtfError {
                path: path.display().to_string(),
                source,
            })
    }

    /// Reads types from memory; `name` is what errors call it.
    #[cfg(test)]
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self, BtfError> {
        Btf::from_bytes(bytes)
            .map(Self::new)
            .map_err(|source| BtfError {
                path: name.to_owned(),
                source,
            })
    }

    fn new(btf: Btf) -> Self {
        Self {
            btf,
            ids: RefCell::default(),
        }
    }

    /// Looks for all of `names` in one walk; each that is asked for later takes a walk of its own.
    #[must_use]
    pub fn with(self, names: &[&str]) -> Self {
        let escaped: Vec<_> = names.iter().map(|name| regex::escape(name)).collect();
        let one_of = Regex::new(&format!("^(?:{})$", escaped.join("|")));
        if let Some(found) = one_of
            .ok()
            .and_then(|one| self.btf.resolve_ids_by_regex(&one).ok())
        {
            let mut ids = self.ids.borrow_mut();
            ids.extend(names.iter().map(|name| ((*name).to_owned(), Vec::new())));
            for id in found {
                let name = self.btf.resolve_type_by_id(id).ok().and_then(|found| {
                    let named = found.as_btf_type()?;
                    self.btf.resolve_name(named).ok()
                });
                if let Some(of_name) = name.and_then(|name| ids.get_mut(&name)) {
                    of_name.push(id);
                }
            }
        }
        self
    }

    /// The ids of all types of a name.
    fn ids(&self, name: &str) -> Vec<u32> {
        if let Some(known) = self.ids.borrow().get(name) {
            return known.clone();
        }
        // A name that no type has is an error to the library.
        let found = self.btf.resolve_ids_by_name(name).unwrap_or_default();
        let mut ids = self.ids.borrow_mut();
        ids.entry(name.to_owned()).or_insert(found).clone()
    }

    fn types(&self, name: &str) -> impl Iterator<Item = Type> {
        let ids = self.ids(name).into_iter();
        ids.filter_map(|id| self.btf.resolve_type_by_id(id).ok())
    }

    /// Byte offset of a member, such as `("task_struct", "sched_info.last_queued")`; members of anonymous
    /// structures and unions are found as C finds them. `None` when there is no such member, or it
    /// is a bit field.
    pub fn offset(&self, structure: &str, path: &str) -> Option<u32> {
        let mut candidates = self.types(structure).filter_map(|t| match t {
            Type::Struct(s) | Type::Union(s) => Some(s),
            _ => None,
        });
        let bits = candidates.find_map(|s| self.path_bits(&s, path))?;
        (bits % 8 == 0).then_some(bits / 8)
    }

    fn path_bits(&self, structure: &Struct, path: &str) -> Option<u32> {
        let (first, rest) = match path.split_once('.') {
            Some((first, rest)) => (first, Some(rest)),
            None => (path, None),
        };
        let (bits, member) = self.member(structure, first)?;
        match rest {
            None => Some(bits),
            Some(rest) => {
                let inner = as_struct(member)?;
                Some(bits + self.path_bits(&inner, rest)?)
            }
        }
    }

    /// A member's offset in bits and its type.
    fn member(&self, structure: &Struct, name: &str) -> Option<(u32, Type)> {
        if name.is_empty() {
            return None;
        }
        for member in &structure.members {
            let found = self.btf.resolve_name(member).unwrap_or_default();
            if !found.is_empty() && found != name {
                continue;
            }
            let ty = self.stripped(self.btf.resolve_chained_type(member).ok()?)?;
            if found == name {
                let bit_field = member.bitfield_size().is_some_and(|bits| bits > 0);
                return (!bit_field).then(|| (member.bit_offset(), ty));
            }
            // Anonymous: its members are ours.
            if let Some(inner) = as_struct(ty)
                && let Some((bits, ty)) = self.member(&inner, name)
            {
                return Some((member.bit_offset() + bits, ty));
            }
        }
        None
    }

    /// How many elements the array has that is a member, such as `("memcg_vmstats", "state")`. `None` when there is
    /// no such member, or it is no array.
    pub fn array_len(&self, structure: &str, member: &str) -> Option<usize> {
        self.types(structure).find_map(|t| {
            let (_, ty) = self.member(&as_struct(t)?, member)?;
            match ty {
                Type::Array(array) => Some(array.len()),
                _ => None,
            }
        })
    }

    /// A type without typedefs and qualifiers.
    fn stripped(&self, mut ty: Type) -> Option<Type> {
        while matches!(
            ty,
            Type::Typedef(_)
                | Type::Const(_)
                | Type::Volatile(_)
                | Type::Restrict(_)
                | Type::TypeTag(_)
        ) {
            ty = self.btf.resolve_chained_type(ty.as_btf_type()?).ok()?;
        }
        Some(ty)
    }

    /// The arguments of a tracepoint as C would write them (`bool`, `task_struct *`); `None` when the
    /// kernel has no such tracepoint.
    pub fn tracepoint_args(&self, name: &str) -> Option<Vec<String>> {
        let typedef = self
            .types(&of_tracepoint(name))
            .find(|t| matches!(t, Type::Typedef(_)))?;
        let pointer = self.btf.resolve_chained_type(typedef.as_btf_type()?).ok()?;
        let Type::FuncProto(proto) = self.btf.resolve_chained_type(pointer.as_btf_type()?).ok()?
        else {
            return None;
        };
        // The first is the probe's private data.
        let arguments = proto.parameters.iter().skip(1);
        Some(arguments.map(|p| self.describe(p)).collect())
    }

    fn describe(&self, parameter: &dyn BtfType) -> String {
        let mut stars = 0;
        let mut ty = self.btf.resolve_chained_type(parameter).ok();
        while let Some(t) = ty {
            match &t {
                Type::Ptr(_) => stars += 1,
                Type::Const(_) | Type::Volatile(_) | Type::Restrict(_) | Type::TypeTag(_) => {}
                Type::Void => return format!("void {}", "*".repeat(stars)),
                _ => {
                    let name = t.as_btf_type().and_then(|t| self.btf.resolve_name(t).ok());
                    let name = name.unwrap_or_default();
                    let gap = if stars > 0 { " " } else { "" };
                    return format!("{name}{gap}{}", "*".repeat(stars));
                }
            }
            ty = t
                .as_btf_type()
                .and_then(|t| self.btf.resolve_chained_type(t).ok());
        }
        // `void *` ends the chain without a type.
        format!("void {}", "*".repeat(stars))
    }

    /// The value of an enumerator, such as `("cgroup_subsys_id", "memory_cgrp_id")`. `None` when
    /// there is no such enumerator, or its value does not fit.
    pub fn enum_value(&self, name: &str, variant: &str) -> Option<i64> {
        self.types(name).find_map(|t| {
            let named =
                |member: &dyn BtfType| self.btf.resolve_name(member).is_ok_and(|n| n == variant);
            match t {
                Type::Enum(e) => {
                    let value = e.members.iter().find(|m| named(*m))?.val();
                    Some(if e.is_signed() {
                        value.cast_signed().into()
                    } else {
                        value.into()
                    })
                }
                Type::Enum64(e) => {
                    let value = e.members.iter().find(|m| named(*m))?.val();
                    if e.is_signed() {
                        Some(value.cast_signed())
                    } else {
                        value.try_into().ok()
                    }
                }
                _ => None,
            }
        })
    }

    /// True when the kernel has this function, so that a program may be attached to it.
    pub fn func_exists(&self, name: &str) -> bool {
        self.func_id(name).is_some()
    }

    /// The type id of a function, the `attach_btf_id` of fentry and fexit programs.
    pub fn func_id(&self, name: &str) -> Option<u32> {
        self.id_where(name, |t| matches!(t, Type::Func(_)))
    }

    /// The type id of a structure.
    pub fn struct_id(&self, name: &str) -> Option<u32> {
        self.id_where(name, |t| matches!(t, Type::Struct(_)))
    }

    /// The type id of a tracepoint, the `attach_btf_id` of `tp_btf` programs.
    pub fn tracepoint_id(&self, name: &str) -> Option<u32> {
        self.id_where(&of_tracepoint(name), |t| matches!(t, Type::Typedef(_)))
    }

    /// The typedefs and functions of these names as aya takes them: each under the kernel's number of it, which is what a
    /// program is attached by. The types between them are forward declarations without a name, which cost aya next to
    /// nothing: of all that there are, some 100,000 with their members, it would make an object each.
    pub fn targets(&self, names: &[&str]) -> Result<aya::Btf, aya::BtfError> {
        let mut targets = BTreeMap::new();
        for name in names {
            for id in self.ids(name) {
                let kind = match self.btf.resolve_type_by_id(id) {
                    Ok(Type::Typedef(_)) => BtfKind::Typedef,
                    Ok(Type::Func(_)) => BtfKind::Func,
                    _ => continue,
                };
                targets.insert(id, (kind, *name));
            }
        }
        let mut strings = vec![0];
        let mut types = Vec::new();
        for id in 1..=targets.keys().copied().max().unwrap_or_default() {
            let (kind, name) = match targets.get(&id) {
                Some((kind, name)) => {
                    let offset = strings.len();
                    strings.extend(name.bytes().chain([0]));
                    (*kind, offset)
                }
                None => (BtfKind::Fwd, 0),
            };
            // `struct btf_type` of `include/uapi/linux/btf.h`: name, kind, and a type that nothing looks at.
            for word in [word(name), (kind as u32) << 24, 0] {
                types.extend(word.to_ne_bytes());
            }
        }
        let header = [
            24,
            0,
            word(types.len()),
            word(types.len()),
            word(strings.len()),
        ];
        let mut bytes = Vec::with_capacity(24 + types.len() + strings.len());
        bytes.extend(0xeb9f_u16.to_ne_bytes());
        bytes.extend([1, 0]);
        bytes.extend(header.into_iter().flat_map(u32::to_ne_bytes));
        bytes.extend(types);
        bytes.extend(strings);
        aya::Btf::parse(&bytes, aya::Endianness::default())
    }

    fn id_where(&self, name: &str, is: impl Fn(&Type) -> bool) -> Option<u32> {
        self.ids(name)
            .into_iter()
            .find(|id| self.btf.resolve_type_by_id(*id).is_ok_and(|t| is(&t)))
    }
}

/// A length in BTF, whose lengths have 32 bits.
fn word(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A copy in memory that can be mapped.
fn copy(path: &Path) -> io::Result<OwnedFd> {
    let mut copy = File::from(memfd_create(c"btf", MFdFlags::MFD_CLOEXEC)?);
    io::copy(&mut File::open(path)?, &mut copy)?;
    Ok(copy.into())
}

/// The typedef of a tracepoint's probe.
pub(super) fn of_tracepoint(name: &str) -> String {
    format!("btf_trace_{name}")
}

fn as_struct(ty: Type) -> Option<Struct> {
    match ty {
        Type::Struct(s) | Type::Union(s) => Some(s),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
