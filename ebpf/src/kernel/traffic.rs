//! What goes to disks and to the network.

use super::*;

globals! {
    /// `io_cgrp_id` of this kernel.
    IO_CGRP_ID = 0;
}

pointer! {
    /// `struct bio *`
    Bio {
        /// Bytes; 0 for a flush of the disk's own cache.
        size: u32 = OFF_BIO_SIZE,
        /// The one behind it in its request.
        next: Self = OFF_BIO_NEXT,
    }
}

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

    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
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

pointer! {
    /// `struct request *`
    Request {
        /// The first bio that is not done.
        bio: Bio = OFF_REQUEST_BIO,
    }
}

impl Task {
    /// The state of the IO controller that the task's own bios are charged to: of its cgroup, or of the nearest one
    /// above that has the controller.
    #[inline(always)]
    pub(crate) fn io_css(self) -> Css {
        self.css(IO_CGRP_ID.load())
    }
}

pointer! {
    /// `struct sock *`
    Socket {
        /// The cgroup, in the unified hierarchy, of the task that made it.
        cgroup: Cgroup = OFF_SOCK_CGROUP,
    }
}

/// `struct sk_buff *`
#[derive(Clone, Copy)]
pub(crate) struct Packet(pub(crate) *const u8);

impl Packet {
    /// Segments that a packet of TCP stands for (`tcp_skb_pcount`, include/net/tcp.h).
    #[inline(always)]
    pub(crate) fn segments(self) -> u64 {
        let at = self.0 as u64 + OFF_SKB_CB.load() + OFF_CB_SEGMENTS.load();
        u64::from(read_at::<u16>(at).unwrap_or(1)).max(1)
    }
}
