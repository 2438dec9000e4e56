//! Others who have a loop device open.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::Result;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// How long others may look at a device that is to go: udev and blkid need milliseconds, a mount does not end by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether the device still serves an image and goes with its last user. Not asked of the device itself: opening it would
/// make us one of those we wait for.
pub(super) fn is_leaving(index: u32) -> bool {
    let autoclear = fs::read_to_string(format!("/sys/block/loop{index}/loop/autoclear"));
    autoclear.is_ok_and(|flag| flag.trim() == "1")
}

/// Returns when the device has gone, or its users take longer than one who only looks.
pub(super) fn wait(index: u32, node: &Path) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let closings = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    closings.add_watch(node, AddWatchFlags::IN_CLOSE)?;
    let waiter = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    waiter.add(&closings, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    while is_leaving(index) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let timeout = EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX);
        match waiter.wait(&mut [EpollEvent::empty()], timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => closings.read_events().map(drop)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
