//! Machine code on disk, by the hash of everything that it was made from.

use std::fs;
use std::hash::Hasher;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

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

/// A file that nobody read for so long goes, whatever version made it.
const UNUSED: Duration = Duration::from_secs(90 * 24 * 3600);
/// How old a mark of use gets before it is set again.
const USE_MARK: Duration = Duration::from_secs(24 * 3600);

static MADE: AtomicU32 = AtomicU32::new(0);

/// Pieces of machine code that this process has begun to make, and did not find. A count that is
/// read while it grows.
pub fn kernels_made() -> u32 {
    MADE.load(Ordering::Relaxed)
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
            mark_use(&path);
            return Ok(bytes);
        }
    }
    MADE.fetch_add(1, Ordering::Relaxed);
    let bytes = make()?;
    if publish(&path, &bytes).is_ok() {
        prune(folder);
    }
    Ok(bytes)
}

fn age(path: &Path) -> Option<Duration> {
    let modified = fs::metadata(path).and_then(|facts| facts.modified()).ok()?;
    SystemTime::now().duration_since(modified).ok()
}

/// Reading does not always show in a file's times; its change does.
fn mark_use(path: &Path) {
    if age(path).is_some_and(|age| age > USE_MARK) {
        let file = fs::File::options().append(true).open(path);
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
    }
}

/// Removes machine code that nobody uses, such as an earlier version's, and abandoned drafts.
fn prune(folder: &Path) {
    let Ok(entries) = folder.read_dir() else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let most = match path.extension().and_then(|text| text.to_str()) {
            Some("cubin") => UNUSED,
            Some("part") => USE_MARK,
            _ => continue,
        };
        if age(&path).is_some_and(|age| age > most) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Writes a file beside its place and renames it: a reader sees all of it or nothing.
fn publish(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().expect("a file of the cache lies in its folder");
    fs::create_dir_all(folder)?;
    let draft = path.with_extension(format!("{}.part", std::process::id()));
    let written = fs::File::create(&draft).and_then(|mut out| {
        out.write_all(bytes)?;
        out.write_all(&seal(bytes))
    });
    written.and_then(|()| fs::rename(&draft, path)).inspect_err(|_| {
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
        assert!(kernels_made() >= 3);
        fs::remove_dir_all(&folder).unwrap();
    }

    fn set_age(path: &Path, days: u64) {
        let file = fs::File::options().append(true).create(true).open(path).unwrap();
        let then = SystemTime::now() - Duration::from_secs(days * 24 * 3600);
        file.set_modified(then).unwrap();
    }

    fn empty_folder(name: &str) -> PathBuf {
        let name = format!("ignis-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn code_that_nobody_used_for_long_goes_when_new_code_comes() {
        let folder = empty_folder("prune");
        let get = |parts: &[&str]| {
            get_or_make(Some(&folder), "rows", parts, || Ok::<_, ()>(vec![1])).unwrap()
        };
        get(&["used"]);
        let used = file(&folder, "rows", &["used"]);
        set_age(&used, 80);
        get(&["used"]);
        assert!(age(&used).unwrap() < USE_MARK, "its use was not marked");
        let names = ["old.cubin", "new.cubin", "a.7.part", "notes.txt"];
        let [old, new, draft, notes] = names.map(|name| folder.join(name));
        for (path, days) in [(&old, 91), (&new, 89), (&draft, 2), (&notes, 400)] {
            set_age(path, days);
        }
        get(&["another"]);
        assert!(!old.exists() && !draft.exists());
        assert!(new.exists() && notes.exists() && used.exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_draft_that_cannot_take_its_place_goes() {
        let folder = empty_folder("draft");
        let path = file(&folder, "rows", &["x"]);
        fs::create_dir_all(&path).unwrap();
        assert!(publish(&path, &[1, 2]).is_err());
        let left: Vec<_> = folder.read_dir().unwrap().flatten().map(|one| one.path()).collect();
        assert_eq!(left, [path]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
