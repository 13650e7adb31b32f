//! Machine code on disk, by the hash of everything that it was made from.

use std::fs;
use std::hash::Hasher;
use std::io::Write;
use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher13};

/// The file of what `parts` make.
fn file(folder: &Path, name: &str, parts: &[&str]) -> PathBuf {
    let mut hasher = SipHasher13::new();
    for part in parts {
        hasher.write_u64(part.len() as u64);
        hasher.write(part.as_bytes());
    }
    folder.join(format!("{name}-{:032x}.cubin", hasher.finish128().as_u128()))
}

/// Bytes of the file's end: a hash of the rest, so that a damaged file is made again.
const SEAL_BYTES: usize = 16;

fn seal(bytes: &[u8]) -> [u8; SEAL_BYTES] {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish128().as_u128().to_le_bytes()
}

/// What `parts` made before, or `make` makes now. A folder that cannot be read or written costs
/// time, never an error.
pub(crate) fn get_or_make<E>(
    folder: Option<&Path>,
    name: &str,
    parts: &[&str],
    make: impl FnOnce() -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, E> {
    let Some(folder) = folder else { return make() };
    let path = file(folder, name, parts);
    if let Ok(mut bytes) = fs::read(&path)
        && bytes.len() > SEAL_BYTES
    {
        let found = bytes.split_off(bytes.len() - SEAL_BYTES);
        if found == seal(&bytes) {
            return Ok(bytes);
        }
    }
    let bytes = make()?;
    let _ = publish(&path, &bytes);
    Ok(bytes)
}

/// Writes a file beside its place and renames it: a reader sees all of it or nothing.
fn publish(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().expect("a file of the cache lies in its folder");
    fs::create_dir_all(folder)?;
    let draft = path.with_extension(format!("{}.part", std::process::id()));
    let mut out = fs::File::create(&draft)?;
    out.write_all(bytes)?;
    out.write_all(&seal(bytes))?;
    drop(out);
    fs::rename(&draft, path).inspect_err(|_| {
        let _ = fs::remove_file(&draft);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_call_reads_and_a_damaged_file_is_made_again() {
        let folder = std::env::temp_dir().join(format!("ignis-kernels-{}", std::process::id()));
        let mut made = 0;
        let mut get = |parts: &[&str]| {
            get_or_make(Some(&folder), "rows", parts, || {
                made += 1;
                Ok::<_, ()>(vec![1, 2, 3])
            })
            .unwrap()
        };
        assert_eq!(get(&["a", "b"]), [1, 2, 3]);
        assert_eq!(get(&["a", "b"]), [1, 2, 3]);
        assert_eq!(get(&["ab", ""]), [1, 2, 3]);
        let path = file(&folder, "rows", &["a", "b"]);
        let mut bytes = fs::read(&path).unwrap();
        bytes[1] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(get(&["a", "b"]), [1, 2, 3]);
        assert_eq!(made, 3);
        fs::remove_dir_all(&folder).unwrap();
    }
}
