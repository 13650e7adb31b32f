//! The look through a file at the start: which images of an earlier process still hold.

use ignis_backend::{BLOCK_BYTES, DiskAction};

use crate::disk_store::DiskStore;
use crate::error::TierError;
use crate::frame::{check_header, read_frame};
use crate::geometry::header_offset;
use crate::header::{Header, Label};
use crate::image::{Found, TOKEN_BYTES, Tier};
use crate::table::{Image, ImageTable};

/// How often the start tries an operation that it cannot do without.
const TRIES: u32 = 3;

/// What the file held.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Whole retained images of this identity.
    pub(crate) found: Vec<Found>,
    /// Headers that were zeroed.
    pub(crate) removed: u32,
}

/// Looks through the file. An image is kept if its header is whole and of this identity and kind,
/// its windows are claimed by no other, each of their frames bears its nonce, and those that hold
/// tokens are undamaged; the header of everything else is zeroed.
///
/// Errors: the label or the table of headers can be neither read nor written.
pub(crate) fn recover(
    store: &mut DiskStore,
    identity: u128,
    images: &mut ImageTable,
) -> Result<Recovered, TierError> {
    let mut recovered = Recovered::default();
    let file = Label { window_bytes: store.window_bytes, windows: store.chains.total() };
    if file.windows == 0 {
        return Ok(recovered);
    }
    let label = Label::decode(read(store, 0, BLOCK_BYTES)?);
    let known = label == Some(file);
    let candidates = scan(store, &file, known, &mut recovered)?;
    if !known {
        file.encode(&mut store.transfer_buffer()[..BLOCK_BYTES]);
        write(store, 0, BLOCK_BYTES)?;
    }
    let mut taken = vec![false; file.windows as usize];
    for (slot, header, list) in candidates {
        let ours = header.identity == identity
            && header.head.kind.is_retained()
            && list.iter().all(|&window| !taken[window as usize]);
        let tokens = if ours { check(store, &header, &list) } else { None };
        match tokens {
            Some(tokens) => {
                list.iter().for_each(|&window| taken[window as usize] = true);
                store.chains.claim(&list);
                let image = images.insert(Image {
                    head: header.head,
                    tier: Tier::Disk,
                    nonce: header.nonce,
                    first: slot,
                    landed: true,
                    readers: 0,
                    damaged: false,
                });
                recovered.found.push(Found { image, head: header.head, tokens });
            }
            None => {
                zero(store, slot);
                recovered.removed += 1;
            }
        }
    }
    store.chains.settle(&taken);
    store.reset_counts();
    Ok(recovered)
}

/// Headers of whole images, with their slots and windows. Zeroes every other slot; all of them if
/// the label is not `known`, for then what lies there was never a table of this size.
fn scan(
    store: &mut DiskStore,
    file: &Label,
    known: bool,
    recovered: &mut Recovered,
) -> Result<Vec<(u32, Header, Vec<u32>)>, TierError> {
    let mut candidates = Vec::new();
    let mut torn = Vec::new();
    let slots_max = file.window_bytes / BLOCK_BYTES as u32;
    let mut first = 0;
    while first < file.windows {
        let slots = slots_max.min(file.windows - first);
        let (offset, bytes) = (header_offset(first), slots as usize * BLOCK_BYTES);
        let table = read(store, offset, bytes)?;
        for (slot, block) in (first..).zip(table.chunks(BLOCK_BYTES)) {
            match Header::decode(block, slot, file).filter(|_| known) {
                Some((header, list)) => candidates.push((slot, header, list)),
                None if block.iter().any(|&byte| byte != 0) => {
                    torn.push(slot);
                    recovered.removed += u32::from(known || Header::is_marked(block));
                }
                None => {}
            }
        }
        if !known && !torn.is_empty() {
            store.transfer_buffer()[..bytes].fill(0);
            write(store, offset, bytes)?;
            torn.clear();
        }
        torn.drain(..).for_each(|slot| zero(store, slot));
        first += slots;
    }
    Ok(candidates)
}

/// The tokens of an image, if each of its frames bears its nonce and those that hold tokens are
/// undamaged. `None` also if a frame cannot be read.
fn check(store: &mut DiskStore, header: &Header, list: &[u32]) -> Option<Vec<u32>> {
    let bytes_wanted = (TOKEN_BYTES * u64::from(header.head.position)) as usize;
    let mut bytes = Vec::with_capacity(bytes_wanted);
    for (index, &window) in (0..).zip(list) {
        let stamp = header.stamp(index);
        let offset = store.window_offset(window);
        if bytes.len() < bytes_wanted {
            let frame = read(store, offset, stamp.stored_bytes()).ok()?;
            let take = |_, piece: &[u8]| {
                let missing = bytes_wanted - bytes.len();
                bytes.extend_from_slice(&piece[..missing.min(piece.len())]);
                Ok::<(), ()>(())
            };
            read_frame(frame, &stamp, take).ok()?;
        } else {
            check_header(read(store, offset, BLOCK_BYTES).ok()?, &stamp).ok()?;
        }
    }
    let token = |four: &[u8]| u32::from_le_bytes(four.try_into().expect("four bytes were cut"));
    Some(bytes.chunks_exact(TOKEN_BYTES as usize).map(token).collect())
}

/// Zeroes a slot. If that fails it stays: whoever finds it next judges it again.
fn zero(store: &mut DiskStore, slot: u32) {
    store.transfer_buffer()[..BLOCK_BYTES].fill(0);
    let _ = write(store, header_offset(slot), BLOCK_BYTES);
}

fn read(store: &mut DiskStore, offset: u64, bytes: usize) -> Result<&[u8], TierError> {
    transfer(store, DiskAction::Read, offset, bytes)?;
    Ok(&store.transfer_buffer()[..bytes])
}

fn write(store: &mut DiskStore, offset: u64, bytes: usize) -> Result<(), TierError> {
    transfer(store, DiskAction::Write, offset, bytes)
}

fn transfer(
    store: &mut DiskStore,
    action: DiskAction,
    offset: u64,
    bytes: usize,
) -> Result<(), TierError> {
    let mut tries = 1;
    loop {
        match store.transfer_now(action, offset, bytes) {
            Ok(()) => return Ok(()),
            Err(error) if tries == TRIES => return Err(store.error(error)),
            Err(_) => tries += 1,
        }
    }
}
