//! TCP segments that are sent again.

use podwarden_abi::Figure;

use crate::{
    account, atomic,
    kernel::{self, Packet, Socket},
};

/// A socket sends a packet again. It counts to the cgroup in which the socket was made, in the pods' network and in
/// the node's. Sockets know their cgroup in the unified hierarchy alone.
#[inline(always)]
pub(crate) fn retransmitted(socket: Socket, packet: Packet) {
    if !kernel::has(Figure::Retransmits) {
        return;
    }
    let cgroup = socket.cgroup();
    if !cgroup.is_identity() {
        return;
    }
    if let Some(shared) = account::shared(account::tracked_slot(cgroup)) {
        // SAFETY: an aligned word of a map value.
        unsafe { atomic::add(&raw mut (*shared).retransmits, packet.segments()) };
    }
}
