//! A folder for the files of one test.

use std::path::{Path, PathBuf};

/// Removed, with its files, when dropped.
pub(crate) struct TestFolder(PathBuf);

impl TestFolder {
    /// `name` must be the test's own.
    pub(crate) fn new(name: &str) -> TestFolder {
        let name = format!("ignis-formats-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        TestFolder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and returns its path.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // left behind at worst
    }
}
