//! What goes to disks and to the network.

use aya_ebpf::{Global, helpers};

use super::*;

/// `io_cgrp_id` of this kernel.
#[unsafe(no_mangle)]
static IO_CGRP_ID: Global<u64> = Global::new(0);

/// `struct bio *`
#[derive(Clone, Copy)]
pub(crate) struct Bio(pub(crate) *const u8);

impl Bio {
    /// True for a part of another bio, which that one has been counted for (`BIO_CLONED` of
    /// include/linux/blk_types.h).
    #[inline(always)]
    pub(crate) fn is_clone(self) -> bool {
        const CLONED: u32 = 1;
        member::<u16>(self.0, OFF_BIO_FLAGS.load()) & (1 << CLONED) != 0
    }

    /// Its operation, `enum req_op` of include/linux/blk_types.h.
    #[inline(always)]
    pub(crate) fn operation(self) -> u32 {
        const MASK: u32 = 0xff;
        member::<u32>(self.0, OFF_BIO_OPF.load()) & MASK
    }

    /// Bytes; 0 for a flush of the disk's own cache.
    #[inline(always)]
    pub(crate) fn size(self) -> u32 {
        member(self.0, OFF_BIO_SIZE.load())
    }

    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The one behind it in its request.
    #[inline(always)]
    pub(crate) fn next(self) -> Self {
        Self(member(self.0, OFF_BIO_NEXT.load()))
    }

    /// The state of the IO controller that it is charged to.
    #[inline(always)]
    pub(crate) fn charged_to(self) -> Css {
        let group: *const u8 = member(self.0, OFF_BIO_BLKG.load());
        let blkcg: *const u8 = member(group, OFF_BLKG_BLKCG.load());
        // SAFETY: the member at this offset; the verifier checks the type.
        Css(unsafe { blkcg.add(OFF_BLKCG_CSS.load() as usize) })
    }
}

/// `struct request *`
#[derive(Clone, Copy)]
pub(crate) struct Request(pub(crate) *const u8);

impl Request {
    /// The first bio that is not done.
    #[inline(always)]
    pub(crate) fn bio(self) -> Bio {
        Bio(member(self.0, OFF_REQUEST_BIO.load()))
    }
}

impl Task {
    /// The state of the IO controller that the task's own bios are charged to: of its cgroup, or of the nearest one
    /// above that has the controller.
    #[inline(always)]
    pub(crate) fn io_css(self) -> Css {
        Css(member(
            self.css_set(),
            OFF_CSET_SUBSYS.load() + IO_CGRP_ID.load() * 8,
        ))
    }
}

/// `struct sock *`
#[derive(Clone, Copy)]
pub(crate) struct Socket(pub(crate) *const u8);

impl Socket {
    /// The cgroup, in the unified hierarchy, of the task that made it.
    #[inline(always)]
    pub(crate) fn cgroup(self) -> Cgroup {
        Cgroup(member(self.0, OFF_SOCK_CGROUP.load()))
    }
}

/// `struct sk_buff *`
#[derive(Clone, Copy)]
pub(crate) struct Packet(pub(crate) *const u8);

impl Packet {
    /// Segments that a packet of TCP stands for (`tcp_skb_pcount`, include/net/tcp.h).
    #[inline(always)]
    pub(crate) fn segments(self) -> u64 {
        let at = (self.0 as u64 + OFF_SKB_CB.load() + OFF_CB_SEGMENTS.load()) as *const u16;
        // SAFETY: a bad address is an error, not a fault.
        let n = unsafe { helpers::bpf_probe_read_kernel(at) };
        u64::from(n.unwrap_or(1)).max(1)
    }
}
