//! The clock on which leases run: it counts from the boot of the machine, its sleep included
//! (LEASE-04, LEASE-05), and nobody can set it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use greenroom_types::{Millis, Mono};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// The longest wait of a task.
const LOOK: Duration = Duration::from_millis(250);

/// What the clock says.
pub(crate) fn boot_time() -> Mono {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let millis = u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000_000;
    Mono(seconds.saturating_mul(1_000)) + Millis(millis)
}

/// A timer of this clock. It rings at its instant, or at the machine's waking if it slept through it.
pub(crate) fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    Ok(timerfd_create(TimerfdClockId::Boottime, flags)?)
}

/// Sets a timer; none silences it.
pub(crate) fn set(timer: &OwnedFd, at: Option<Mono>) -> io::Result<()> {
    // All zero would silence it, so that what was due at the boot rings a little later.
    let at = at.map_or(Mono(0), |at| at.max(Mono(1)));
    let value = Timespec {
        tv_sec: i64::try_from(at.0 / 1_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(at.0 % 1_000).unwrap_or_default() * 1_000_000,
    };
    let never = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let spec = Itimerspec {
        it_interval: never,
        it_value: value,
    };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &spec)?;
    Ok(())
}

/// Returns at the instant; never without one.
///
/// The clock of tasks stands still while the machine sleeps, so that no wait is longer than
/// [`LOOK`]: that much after its waking, at the latest, a task sees what it has slept through.
pub(crate) async fn reached(at: Option<Mono>) {
    let Some(at) = at else {
        return std::future::pending().await;
    };
    loop {
        let left = at - boot_time();
        if left == Millis(0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(left.0).min(LOOK)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_instant_is_reached_then_and_not_before() {
        let at = boot_time() + Millis(20);
        reached(Some(at)).await;
        assert!(boot_time() >= at);
        // What is past is reached at once.
        reached(Some(Mono(0))).await;
    }
}
