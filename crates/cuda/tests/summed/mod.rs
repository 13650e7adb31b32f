//! Sums of what travels, in parts of every shape.

use ignis_backend::{Copied, CopyPart, CopyWay, Device, Sum};

use crate::{WINDOW, alone, parts, pattern, rig};

/// Lists of parts that a sum is made of: one byte, many small ones, pages, one large one.
fn shapes(at: u64) -> Vec<Vec<CopyPart>> {
    let list = |sizes: &[usize], gap: usize| -> Vec<CopyPart> {
        let mut end = 64 + gap;
        let next = |&bytes: &usize| {
            let host = end;
            end += bytes + gap;
            CopyPart { at: at + host as u64, host, bytes }
        };
        sizes.iter().map(next).collect()
    };
    let small: Vec<usize> = (0..200).map(|i| 1 + i * 37 % 300).collect();
    let slice = 8 * 128 * 256;
    vec![
        vec![],
        list(&[1], 0),
        list(&small, 3),
        list(&small[..64], 0),
        list(&[2048; 65], 8),
        list(&[slice, slice - 8, slice + 1, 5], 1),
        list(&[WINDOW - 64], 0),
        list(&[WINDOW - 77], 13),
        parts(at),
    ]
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn what_travels_is_summed_where_it_lies() {
    let _alone = alone();
    let (mut rig, unused) = rig(WINDOW);
    let device = &mut rig.device;
    let mut frame = device.host_memory(1, WINDOW).unwrap().pop().unwrap();
    for (seed, shape) in (0..).zip(shapes(unused)) {
        let mut wanted = vec![0; WINDOW];
        pattern(seed, &mut wanted);
        let pieces = || shape.iter().map(|part| &wanted[part.host..part.host + part.bytes]);
        let sum = pieces().map(Sum::of).fold(Sum::NONE, Sum::then);
        assert_eq!(sum.bytes, pieces().map(|piece| piece.len() as u64).sum::<u64>());
        device.write(unused, &vec![!seed as u8; WINDOW]).unwrap();
        frame.copy_from_slice(&wanted);
        for (way, still) in [(CopyWay::In, true), (CopyWay::Out, true), (CopyWay::Out, false)] {
            let copies = device.begin_copies(way, frame, &mut shape.iter().copied(), still);
            let Copied { host, result } = device.end_copies(copies, true).unwrap();
            frame = host;
            let expected = if still { sum } else { Sum::NONE };
            assert_eq!(result.unwrap(), expected, "list {seed}, {way:?}");
        }
        // A bit that differs on the card alone is in the sum.
        let Some(last) = shape.last() else { continue };
        let at = last.at + last.bytes as u64 - 1;
        device.write(at, &[wanted[last.host + last.bytes - 1] ^ 0x80]).unwrap();
        let copies = device.begin_copies(CopyWay::Out, frame, &mut shape.iter().copied(), true);
        let Copied { host, result } = device.end_copies(copies, true).unwrap();
        frame = host;
        assert_ne!(result.unwrap(), sum, "list {seed}");
    }
}
