//! Limits a pod's bandwidth with a token bucket at each end of its pair of interfaces.
//!
//! The bucket for sent packets is in the pod's namespace, so a container with `CAP_NET_ADMIN` can
//! remove it.

use crate::bridge::netlink::{Batch, CREATE, EXCLUSIVE, NetlinkError, Operation, Socket};
use model::BitRate;

const RTM_NEWQDISC: u16 = 36;
const TC_H_ROOT: u32 = 0xffff_ffff;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;

/// The minimum burst: two packets of the largest size before segmentation.
const BURST_MIN: u64 = 128 << 10;
/// The burst as a part of the bytes per second.
const BURSTS_PER_SECOND: u64 = 50;
/// The queue as a part of the bytes per second: 25 ms.
const WAITS_PER_SECOND: u64 = 40;

/// Limits the packets that leave by an interface. Returns false if the kernel has no token buckets.
pub(in crate::bridge) fn limit(socket: &Socket, index: u32, rate: BitRate) -> Result<bool, NetlinkError> {
    let Bucket { rate, burst, limit } = Bucket::of(rate);
    let mut head = [0; 20];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[12..16].copy_from_slice(&TC_H_ROOT.to_ne_bytes());
    let mut parameters = [0; 36];
    parameters[1] = TC_LINKLAYER_ETHERNET;
    parameters[8..12].copy_from_slice(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
    parameters[24..28].copy_from_slice(&limit.to_ne_bytes());
    let mut batch = Batch::new();
    let step = Operation::new("limiting the pod's bandwidth");
    let mut message = batch.message(step, RTM_NEWQDISC, CREATE | EXCLUSIVE, &head);
    message.text(TCA_KIND, "tbf").nest(TCA_OPTIONS, |m| {
        m.bytes(TCA_TBF_PARMS, &parameters).u32(TCA_TBF_BURST, burst);
        if u32::try_from(rate).is_err() {
            m.u64(TCA_TBF_RATE64, rate);
        }
    });
    drop(message);
    match socket.request(batch) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::EOPNOTSUPP)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// In bytes.
#[derive(Debug, PartialEq, Eq)]
struct Bucket {
    /// Bytes per second.
    rate: u64,
    burst: u32,
    limit: u32,
}

impl Bucket {
    fn of(BitRate(bits): BitRate) -> Self {
        let rate = (bits / 8).max(1);
        let burst = (rate / BURSTS_PER_SECOND).max(BURST_MIN);
        let clipped = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        Self { rate, burst: clipped(burst), limit: clipped(burst + rate / WAITS_PER_SECOND) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_burst_and_limit_follow_from_the_bandwidth() {
        assert_eq!(Bucket::of(BitRate(8_000_000)), Bucket { rate: 1_000_000, burst: 131_072, limit: 156_072 });
        let fast = Bucket::of(BitRate(10_000_000_000));
        assert_eq!(fast, Bucket { rate: 1_250_000_000, burst: 25_000_000, limit: 56_250_000 });
        assert_eq!(Bucket::of(BitRate(u64::MAX)).limit, u32::MAX);
        assert_eq!(Bucket::of(BitRate(7)).rate, 1);
    }
}
