//! Sizes of windows and files: the arithmetic that the plan shows and the tiers use.

use ignis_backend::BLOCK_BYTES;

/// Bytes of the header of a frame; the rest of a window is payload.
pub const FRAME_HEADER_BYTES: usize = 64;
/// Most windows of one image: what the window list of a disk header holds.
pub const IMAGE_WINDOWS_MAX: u32 = 960;
/// Bytes that are copied and checked in one go: source and target stay in the first-level cache
/// between the two.
pub const PIECE_BYTES: usize = 8 << 10;

/// Buffers of each mover: one is filled or emptied while the other is with the disk.
pub(crate) const STAGES: usize = 2;
/// Powers of two that `window_bytes` chooses from: 1 MiB to 2 GiB.
const WINDOW_POWER_MIN: u32 = 20;
const WINDOW_POWER_MAX: u32 = 31;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes of a window for images of up to `image_payload_bytes`: a power of two, at least 1 MiB, of
/// which such an image takes at most [`IMAGE_WINDOWS_MAX`]. `None` beyond 2 GiB a window.
pub fn window_bytes(image_payload_bytes: u64) -> Option<u32> {
    let sizes = (WINDOW_POWER_MIN..=WINDOW_POWER_MAX).map(|power| 1 << power);
    let fits =
        |bytes: &u32| windows_of(image_payload_bytes, *bytes) <= u64::from(IMAGE_WINDOWS_MAX);
    sizes.into_iter().find(fits)
}

/// Windows that a file of `bytes` holds: one block for its label, then for each window a block for
/// a header and the window itself.
pub fn disk_windows(bytes: u64, window_bytes: u32) -> u32 {
    let each = u64::from(window_bytes) + BLOCK;
    u32::try_from(bytes.saturating_sub(BLOCK) / each).unwrap_or(u32::MAX)
}

/// Bytes of a file that holds `windows`.
pub fn disk_bytes(windows: u32, window_bytes: u32) -> u64 {
    frames_start(windows) + u64::from(windows) * u64::from(window_bytes)
}

/// Bytes of host memory that KV-disk takes for its buffers: two windows each way, and a header.
pub fn disk_buffer_bytes(window_bytes: u32) -> u64 {
    2 * STAGES as u64 * u64::from(window_bytes) + BLOCK
}

/// Windows of a payload of `payload_bytes`.
pub(crate) fn windows_of(payload_bytes: u64, window_bytes: u32) -> u64 {
    payload_bytes.div_ceil(window_room(window_bytes))
}

/// Payload bytes of one window.
pub(crate) fn window_room(window_bytes: u32) -> u64 {
    u64::from(window_bytes) - FRAME_HEADER_BYTES as u64
}

/// Where the header of the image whose first window is `slot` lies on a disk.
pub(crate) fn header_offset(slot: u32) -> u64 {
    BLOCK + u64::from(slot) * BLOCK
}

/// Where the windows start on a disk.
pub(crate) fn frames_start(windows: u32) -> u64 {
    header_offset(windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_until_the_list_of_the_longest_image_fits_a_header() {
        let room = (1 << 20) - FRAME_HEADER_BYTES as u64;
        assert_eq!(window_bytes(1), Some(1 << 20));
        assert_eq!(window_bytes(960 * room), Some(1 << 20));
        assert_eq!(window_bytes(960 * room + 1), Some(2 << 20));
        assert_eq!(window_bytes(u64::MAX), None);
    }

    #[test]
    fn a_file_holds_as_many_windows_as_its_bytes_say() {
        for windows in [0, 1, 5, 4096] {
            let bytes = disk_bytes(windows, 1 << 20);
            assert_eq!(disk_windows(bytes, 1 << 20), windows);
            assert_eq!(disk_windows(bytes.saturating_sub(1), 1 << 20), windows.saturating_sub(1));
        }
        assert_eq!(disk_windows(0, 4096), 0);
    }
}
