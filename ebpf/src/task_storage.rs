//! A map of the kernel's task storage type, which aya-ebpf does not offer yet.

use core::ptr;

use aya_ebpf::{
    bindings::{
        BPF_F_NO_PREALLOC, BPF_LOCAL_STORAGE_GET_F_CREATE, bpf_map_type::BPF_MAP_TYPE_TASK_STORAGE,
    },
    helpers::generated::bpf_task_storage_get,
};

use crate::kernel::Task;

/// One `T` for each task that was given one; freed with the task.
///
/// A value is only made where allocating is harmless, never with a run queue locked: before 6.4 the
/// kernel takes it from kmalloc, which may have to wake kswapd.
#[repr(C)]
pub(crate) struct TaskStorage<T> {
    r#type: *const [i32; BPF_MAP_TYPE_TASK_STORAGE as usize],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; BPF_F_NO_PREALLOC as usize],
}

// SAFETY: the fields only describe the map to the loader; nothing reads them here.
unsafe impl<T> Sync for TaskStorage<T> {}

impl<T> TaskStorage<T> {
    pub(crate) const fn new() -> Self {
        Self {
            r#type: ptr::null(),
            key: ptr::null(),
            value: ptr::null(),
            max_entries: ptr::null(),
            map_flags: ptr::null(),
        }
    }

    /// The value of a task that the verifier trusts: an argument of the program, or the current one.
    #[inline(always)]
    pub(crate) fn get(&self, task: Task) -> Option<*mut T> {
        self.call(task, ptr::null_mut(), 0)
    }

    /// The same; a task without a value gets `initial`. See the type for where this is allowed.
    #[inline(always)]
    pub(crate) fn get_or_insert(&self, task: Task, mut initial: T) -> Option<*mut T> {
        let flags = u64::from(BPF_LOCAL_STORAGE_GET_F_CREATE);
        self.call(task, &raw mut initial, flags)
    }

    #[inline(always)]
    fn call(&self, task: Task, initial: *mut T, flags: u64) -> Option<*mut T> {
        let map = ptr::from_ref(self).cast_mut();
        // SAFETY: a map, a trusted task by the caller's word, and a value of the map's type or none.
        let value = unsafe {
            bpf_task_storage_get(map.cast(), task.address() as *mut _, initial.cast(), flags)
        };
        let value = value.cast::<T>();
        (!value.is_null()).then_some(value)
    }
}
