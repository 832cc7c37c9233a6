//! Which device gives a GPU share (GPU-01, GPU-02, GPU-04), and whether the shares of a group fit
//! together (GPU-07).

use greenroom_types::SHARE_TOLERANCE;
use greenroom_types::pool::PackingStrategy;

use crate::key::billionths;
use crate::needs::GpuNeed;
use crate::offer::Device;
use crate::reserved::Reserved;

/// The devices do not hold what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoFit;

/// Chooses a device for `own`, so that the shares of the rest of its group and those held for others
/// still find room beside it. Without a share of its own a job is given none, but the rest of its
/// group must fit.
pub(crate) fn choose(
    devices: &[Device],
    reserved: &Reserved,
    own: Option<&GpuNeed>,
    rest: &[GpuNeed],
    strategy: PackingStrategy,
) -> Result<Option<u32>, NoFit> {
    if own.is_none() && rest.is_empty() {
        return Ok(None);
    }
    let alone = rest.is_empty() && reserved.gpu_holds.is_empty();
    if let (Some(own), true) = (own, alone) {
        return preferred(devices, reserved, own, strategy, |_| true)
            .map(|at| Some(devices[at].index))
            .ok_or(NoFit);
    }

    let free: Vec<f64> = devices
        .iter()
        .map(|device| device.capacity - reserved.gpu(device.index))
        .collect();
    let mut others: Vec<&GpuNeed> = rest.iter().chain(&reserved.gpu_holds).collect();
    largest_first(&mut others);
    let Some(own) = own else {
        return pack(devices, free, &others).map(|_| None).ok_or(NoFit);
    };
    let leaves_room = |at: usize| {
        let mut free = free.clone();
        free[at] -= own.share;
        pack(devices, free, &others).is_some()
    };
    if let Some(at) = preferred(devices, reserved, own, strategy, leaves_room) {
        return Ok(Some(devices[at].index));
    }
    // Packed together, largest first, they may still fit: own takes the device it gets there.
    others.push(own);
    largest_first(&mut others);
    let packed = pack(devices, free, &others).ok_or(NoFit)?;
    others
        .iter()
        .position(|need| std::ptr::eq(*need, own))
        .map(|at| Some(devices[packed[at]].index))
        .ok_or(NoFit)
}

/// Largest free share of a device of that model, for the trace.
pub(crate) fn largest_free(devices: &[Device], reserved: &Reserved, model: &str) -> f64 {
    devices
        .iter()
        .filter(|device| device.is_model(model))
        .map(|device| (device.capacity - reserved.gpu(device.index)).max(0.0))
        .fold(0.0, f64::max)
}

/// The fullest fitting device, or the emptiest; ties to the lowest index (GPU-02).
fn preferred(
    devices: &[Device],
    reserved: &Reserved,
    own: &GpuNeed,
    strategy: PackingStrategy,
    accepts: impl Fn(usize) -> bool,
) -> Option<usize> {
    devices
        .iter()
        .enumerate()
        .filter(|(at, device)| {
            device.is_model(&own.model)
                && own.share <= device.capacity - reserved.gpu(device.index) + SHARE_TOLERANCE
                && accepts(*at)
        })
        .min_by_key(|(_, device)| {
            let used = billionths(reserved.gpu(device.index), device.capacity);
            let order = match strategy {
                PackingStrategy::Binpack => -used,
                PackingStrategy::Spread => used,
            };
            (order, device.index)
        })
        .map(|(at, _)| at)
}

/// Larger shares first, and of equal ones those that want a model, as they have less choice.
fn largest_first(needs: &mut [&GpuNeed]) {
    needs.sort_by(|a, b| {
        b.share
            .total_cmp(&a.share)
            .then_with(|| a.model.is_empty().cmp(&b.model.is_empty()))
    });
}

/// Puts each need, in the given order, onto the fullest device that has room; gives the device of
/// each. A share is never split (GPU-04).
fn pack(devices: &[Device], mut free: Vec<f64>, needs: &[&GpuNeed]) -> Option<Vec<usize>> {
    let mut taken = Vec::with_capacity(needs.len());
    for need in needs {
        let at = devices
            .iter()
            .enumerate()
            .filter(|(at, device)| {
                device.is_model(&need.model) && need.share <= free[*at] + SHARE_TOLERANCE
            })
            .min_by(|(a, _), (b, _)| free[*a].total_cmp(&free[*b]))
            .map(|(at, _)| at)?;
        free[at] -= need.share;
        taken.push(at);
    }
    Some(taken)
}
