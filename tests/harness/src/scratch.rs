//! A folder of a test's own, below the target folder, removed at its end.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder that is removed when this is dropped.
pub struct Scratch(TempDir);

impl Scratch {
    /// A new folder whose name begins with `name`.
    pub fn new(name: &str) -> Scratch {
        let parent = target_folder().join("scratch");
        std::fs::create_dir_all(&parent).unwrap_or_else(|e| panic!("create {}: {e}", parent.display()));
        let folder = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .tempdir_in(&parent)
            .unwrap_or_else(|e| panic!("create a folder in {}: {e}", parent.display()));
        Scratch(folder)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path in the folder; nothing is created.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file in the folder and returns its path.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, content).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
        path
    }
}

/// Cargo's target folder: the one the running test binary lies in.
pub fn target_folder() -> PathBuf {
    let binary = std::env::current_exe().unwrap_or_else(|e| panic!("find the running binary: {e}"));
    // target/debug/deps/name-hash, or target/debug/name for a binary of the package itself.
    let profile = binary
        .ancestors()
        .find(|folder| folder.join("deps").is_dir() && folder.join("build").is_dir())
        .unwrap_or_else(|| panic!("{} does not lie in a target folder of cargo", binary.display()));
    profile.parent().map_or_else(|| profile.to_path_buf(), Path::to_path_buf)
}
