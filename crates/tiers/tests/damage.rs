//! What is done to the file of KV-disk between two processes, and what the second one makes of it.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ignis_backend::{BLOCK_BYTES, Disk};
use ignis_tiers::{
    FILE_NAME, FRAME_HEADER_BYTES, FileDisk, Found, Kind, Tier, TierError, TierLimits, Tiers,
    disk_bytes, file_room,
};
use support::{State, get, head, put};

const WINDOW: u32 = 8192;
const WINDOWS: u32 = 8;
const LIMITS: TierLimits = TierLimits { window_bytes: WINDOW, ram_windows: 0 };
const IDENTITY: u128 = 0xFEED << 64 | 1;
/// Tokens of the images below: in the first window only.
const POSITION: u32 = 100;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("ignis-kv-disk-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }

    fn disk(&self) -> FileDisk {
        FileDisk::open(&self.0, disk_bytes(WINDOWS, WINDOW), 0).unwrap()
    }

    fn tiers(&self) -> Tiers {
        self.tiers_of(IDENTITY)
    }

    fn tiers_of(&self, identity: u128) -> Tiers {
        Tiers::new(LIMITS, identity, 11, Some(Box::new(self.disk()))).unwrap()
    }

    fn file(&self) -> File {
        File::options().read(true).write(true).open(self.0.join(FILE_NAME)).unwrap()
    }

    /// Changes `bytes` bytes of the file from `at` on.
    fn change(&self, at: u64, bytes: usize, change: impl FnOnce(&mut [u8])) {
        let mut part = vec![0; bytes];
        self.file().read_exact_at(&mut part, at).unwrap();
        change(&mut part);
        self.file().write_all_at(&part, at).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn header_at(slot: u64) -> u64 {
    BLOCK_BYTES as u64 * (1 + slot)
}

fn window_at(window: u64) -> u64 {
    header_at(u64::from(WINDOWS)) + window * u64::from(WINDOW)
}

/// Two retained images, of windows 0..3 and 3..6, left by a process that ended.
fn two_images(name: &str) -> (Folder, [State; 2]) {
    let folder = Folder::new(name);
    let states = [1, 2].map(|serial| State::new(serial, POSITION, 20_000));
    let mut tiers = folder.tiers();
    assert!(tiers.take_found().is_empty() && tiers.removed_at_start() == 0);
    for state in &states {
        put(&mut tiers, head(Kind::Checkpoint, POSITION, state), Tier::Disk, state);
    }
    (folder, states)
}

fn found_as(found: &Found, state: &State) {
    assert_eq!(found.head, head(Kind::Checkpoint, POSITION, state));
    assert_eq!(found.tokens, state.tokens(POSITION));
}

/// After `change`, the first image is refused at the start and the second restored.
fn refused_at_start(name: &str, change: impl FnOnce(&Folder)) {
    let (folder, [_, second]) = two_images(name);
    change(&folder);
    let mut tiers = folder.tiers();
    let found = tiers.take_found();
    assert_eq!((found.len(), tiers.removed_at_start()), (1, 1), "{name}");
    found_as(&found[0], &second);
    assert_eq!(get(&mut tiers, found[0].image), Ok(second));
    assert_eq!(tiers.windows_free(Tier::Disk), WINDOWS - 3);
    drop(tiers);
    assert_eq!(folder.tiers().removed_at_start(), 0, "{name}: it was removed once and for all");
}

/// After `change`, the first image is found, and refused where it is restored; the second is whole.
fn refused_when_restored(name: &str, window: u32, change: impl FnOnce(&Folder)) {
    let (folder, [_, second]) = two_images(name);
    change(&folder);
    let mut tiers = folder.tiers();
    let found = tiers.take_found();
    assert_eq!((found.len(), tiers.removed_at_start()), (2, 0), "{name}");
    let error = get(&mut tiers, found[0].image).unwrap_err();
    let path = folder.0.join(FILE_NAME).display().to_string();
    assert!(
        matches!(&error, TierError::Damaged { place, window: at, .. }
            if *place == path && *at == window),
        "{name}: {error}"
    );
    assert!(tiers.head(found[0].image).is_none(), "{name}: a damaged image is gone");
    assert_eq!(get(&mut tiers, found[1].image), Ok(second));
    assert_eq!(tiers.windows_free(Tier::Disk), WINDOWS - 3);
    drop(tiers);
    let mut tiers = folder.tiers();
    assert_eq!((tiers.take_found().len(), tiers.removed_at_start()), (1, 0), "{name}");
}

#[test]
fn images_of_an_earlier_process_are_found_and_restored() {
    let (folder, states) = two_images("whole");
    for _ in 0..2 {
        let mut tiers = folder.tiers();
        let found = tiers.take_found();
        assert_eq!((found.len(), tiers.removed_at_start()), (2, 0));
        for (found, state) in found.iter().zip(&states) {
            found_as(found, state);
            assert_eq!(get(&mut tiers, found.image).as_ref(), Ok(state));
        }
        let counts = tiers.disk_counts();
        assert_eq!((counts.bytes_read, counts.bytes_written, counts.failures), (40_960, 0, 0));
    }
}

#[test]
fn live_images_are_removed() {
    let folder = Folder::new("live");
    let state = State::new(1, POSITION, 20_000);
    put(&mut folder.tiers(), head(Kind::Live, POSITION, &state), Tier::Disk, &state);
    let mut tiers = folder.tiers();
    assert_eq!((tiers.take_found().len(), tiers.removed_at_start()), (0, 1));
    assert_eq!(tiers.windows_free(Tier::Disk), WINDOWS);
}

#[test]
fn images_of_another_identity_are_removed() {
    let (folder, _) = two_images("foreign");
    let mut tiers = folder.tiers_of(IDENTITY + 1);
    assert_eq!((tiers.take_found().len(), tiers.removed_at_start()), (0, 2));
    drop(tiers);
    assert!(folder.tiers().take_found().is_empty(), "they are gone for their own model too");
}

#[test]
fn images_in_windows_of_another_size_are_removed() {
    let (folder, _) = two_images("geometry");
    for (window_bytes, removed) in [(16384, 2), (8192, 0)] {
        let limits = TierLimits { window_bytes, ..LIMITS };
        let mut tiers = Tiers::new(limits, IDENTITY, 11, Some(Box::new(folder.disk()))).unwrap();
        assert_eq!((tiers.take_found().len(), tiers.removed_at_start()), (0, removed));
        let state = State::new(1, POSITION, 20_000);
        let image = put(&mut tiers, head(Kind::Live, POSITION, &state), Tier::Disk, &state);
        assert_eq!(get(&mut tiers, image), Ok(state));
        tiers.drop_image(image).unwrap();
    }
}

#[test]
fn a_damaged_header_is_refused_at_the_start() {
    for at in [0, 9, 17, 33, 40, 45, 50, 57, 250, 256, 264, 4095] {
        refused_at_start("flip-header", |folder| {
            folder.change(header_at(0) + at, 1, |byte| byte[0] ^= 0x10);
        });
    }
    refused_at_start("torn-header", |folder| {
        folder.change(header_at(0), BLOCK_BYTES, |block| block[60..].fill(0));
    });
    refused_at_start("garbage-header", |folder| {
        folder.change(header_at(0), BLOCK_BYTES, |block| block.fill(0xA5));
    });
}

#[test]
fn a_header_in_a_slot_that_is_not_its_own_is_refused() {
    let (folder, [first, second]) = two_images("moved-header");
    let mut block = vec![0; BLOCK_BYTES];
    folder.file().read_exact_at(&mut block, header_at(0)).unwrap();
    folder.file().write_all_at(&block, header_at(7)).unwrap();
    let mut tiers = folder.tiers();
    let found = tiers.take_found();
    assert_eq!((found.len(), tiers.removed_at_start()), (2, 1));
    assert_eq!(get(&mut tiers, found[0].image), Ok(first));
    assert_eq!(get(&mut tiers, found[1].image), Ok(second));
}

#[test]
fn a_zeroed_header_is_no_image() {
    let (folder, [_, second]) = two_images("zero-header");
    folder.change(header_at(0), BLOCK_BYTES, |block| block.fill(0));
    let mut tiers = folder.tiers();
    let found = tiers.take_found();
    assert_eq!((found.len(), tiers.removed_at_start()), (1, 0));
    found_as(&found[0], &second);
}

#[test]
fn damaged_tokens_are_refused_at_the_start() {
    refused_at_start("flip-token", |folder| {
        folder.change(window_at(0) + FRAME_HEADER_BYTES as u64 + 8, 1, |byte| byte[0] ^= 1);
    });
    refused_at_start("flip-beside-tokens", |folder| {
        folder.change(window_at(0) + 8000, 1, |byte| byte[0] ^= 1);
    });
    refused_at_start("zero-first", |folder| {
        folder.change(window_at(0), WINDOW as usize, |frame| frame.fill(0));
    });
}

#[test]
fn a_frame_that_is_not_the_image_s_is_refused_at_the_start() {
    refused_at_start("zero-frame", |folder| {
        folder.change(window_at(1), WINDOW as usize, |frame| frame.fill(0));
    });
    refused_at_start("swap-frames", |folder| {
        folder.change(window_at(1), 2 * WINDOW as usize, |frames| {
            frames.rotate_left(WINDOW as usize);
        });
    });
    refused_at_start("frame-of-another", |folder| {
        let mut frame = vec![0; WINDOW as usize];
        folder.file().read_exact_at(&mut frame, window_at(4)).unwrap();
        folder.file().write_all_at(&frame, window_at(1)).unwrap();
    });
}

#[test]
fn a_damaged_payload_is_refused_when_it_is_restored() {
    for (window, at) in [(1, 64), (1, 8191), (2, 100)] {
        refused_when_restored("flip-payload", window as u32, |folder| {
            folder.change(window_at(window) + at, 1, |byte| byte[0] ^= 0x80);
        });
    }
    refused_when_restored("torn-frame", 1, |folder| {
        folder.change(window_at(1) + 4096, 4096, |part| part.fill(0));
    });
    refused_when_restored("flip-checksum", 2, |folder| {
        folder.change(window_at(2) + 56, 1, |byte| byte[0] ^= 1);
    });
}

#[test]
fn a_file_cut_short_is_refused_whole() {
    let (folder, [first, _]) = two_images("truncated");
    folder.file().set_len(window_at(4)).unwrap();
    let mut tiers = folder.tiers();
    let found = tiers.take_found();
    assert_eq!((found.len(), tiers.removed_at_start()), (1, 1));
    assert_eq!(get(&mut tiers, found[0].image), Ok(first));
    drop(tiers);
    folder.file().set_len(0).unwrap();
    let mut tiers = folder.tiers();
    assert_eq!((tiers.take_found().len(), tiers.removed_at_start()), (0, 0));
}

#[test]
fn a_file_that_is_no_store_is_made_one() {
    let folder = Folder::new("garbage");
    fs::create_dir_all(&folder.0).unwrap();
    fs::write(folder.0.join(FILE_NAME), vec![0xEE; 50_000]).unwrap();
    let mut tiers = folder.tiers();
    assert_eq!((tiers.take_found().len(), tiers.removed_at_start()), (0, 0));
    let state = State::new(1, POSITION, 20_000);
    put(&mut tiers, head(Kind::Prefix, POSITION, &state), Tier::Disk, &state);
    drop(tiers);
    let mut tiers = folder.tiers();
    assert_eq!((tiers.take_found().len(), tiers.removed_at_start()), (1, 0));
}

#[test]
fn a_second_opener_is_refused_and_changes_nothing() {
    let (folder, states) = two_images("lock");
    let mut tiers = folder.tiers();
    let path = folder.0.join(FILE_NAME);
    let refused = FileDisk::open(&folder.0, 1 << 20, 0).unwrap_err();
    assert_eq!(refused, TierError::Locked { path: path.clone() });
    let text = refused.to_string();
    assert!(text.contains(&path.display().to_string()) && text.contains("another process"));
    let found = tiers.take_found();
    assert_eq!(get(&mut tiers, found[1].image).as_ref(), Ok(&states[1]));
    drop(tiers);
    folder.disk();
}

#[test]
fn a_volume_that_is_too_small_is_refused_before_a_file_is_made() {
    let folder = Folder::new("full");
    let room = file_room(&folder.0).unwrap();
    assert!(room > 0 && !folder.0.exists());
    let (bytes, margin) = (1 << 20, 1 << 60);
    match FileDisk::open(&folder.0, bytes, margin).unwrap_err() {
        TierError::VolumeFull { path, needed, available, margin: told } => {
            assert_eq!((path, needed, told), (folder.0.join(FILE_NAME), bytes, margin));
            assert!(available > 0);
        }
        other => panic!("{other}"),
    }
    assert!(!folder.0.join(FILE_NAME).exists());
    let kept = two_images("full-kept").0;
    let bytes_before = fs::metadata(kept.0.join(FILE_NAME)).unwrap().len();
    assert!(FileDisk::open(&kept.0, 1 << 20, margin).is_err());
    assert_eq!(fs::metadata(kept.0.join(FILE_NAME)).unwrap().len(), bytes_before);
}

#[test]
fn the_file_is_reserved_whole_and_counts_as_room_for_itself() {
    use std::os::unix::fs::MetadataExt;
    let folder = Folder::new("reserved");
    let bytes = 8 << 20;
    let disk = FileDisk::open(&folder.0, bytes, 0).unwrap();
    assert_eq!((disk.bytes(), disk.path()), (bytes, &*folder.0.join(FILE_NAME)));
    let found = fs::metadata(disk.path()).unwrap();
    assert!(found.len() == bytes && found.blocks() * 512 >= bytes);
    assert_eq!(found.mode() & 0o777, 0o600);
    assert!(file_room(&folder.0).unwrap() >= bytes);
    drop(disk);
    let smaller = FileDisk::open(&folder.0, 1 << 20, 0).unwrap();
    assert_eq!(fs::metadata(smaller.path()).unwrap().len(), 1 << 20);
}

#[test]
fn a_folder_that_cannot_be_is_an_error_that_names_it() {
    let folder = Folder::new("file-in-the-way");
    fs::create_dir_all(&folder.0).unwrap();
    let blocked: &Path = &folder.0.join("plain");
    fs::write(blocked, b"x").unwrap();
    let refused = FileDisk::open(blocked, 1 << 20, 0).unwrap_err();
    assert!(refused.to_string().contains("plain"), "{refused}");
}
