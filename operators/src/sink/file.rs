//! A sink that writes one line per value at the end of a file.
//!
//! - A value is acknowledged when its line and the file's length are durable.
//! - A last line without an end was torn by a crash, so it was never acknowledged: it is cut off before the first
//!   line is added, and comes again.
//! - All workers of a process share the file; another process does not (each has `{process}` in its path, and the
//!   file is locked).
//! - A disk that is full or fails is tried again for a minute; then the run ends with 74.

use super::lines::{LineTarget, LineWriter};
use crate::fault::Fault;
use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tidegate_recovery::{ErrorClass, ProcessIndex};

/// In a path, the place of the process index.
pub const PROCESS: &str = "{process}";

/// A write that fails is tried again for this long.
const RETRY_FOR: Duration = Duration::from_secs(60);
/// The lock of the file must be free within this time.
const LOCK_WITHIN: Duration = Duration::from_secs(2);
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Opens a file for a sink, making it if it is missing. In a cluster of several processes the path must contain
/// [`PROCESS`], which is replaced by the index of this one.
pub fn writer(path: &str, process: ProcessIndex, processes: usize) -> Result<LineWriter, Fault> {
    if processes > 1 && !path.contains(PROCESS) {
        return Err(Fault::new(
            ErrorClass::Config,
            format!(
                "the file sink `{path}` would be written by {processes} processes: put {PROCESS} into its path"
            ),
        ));
    }
    let path = PathBuf::from(path.replace(PROCESS, &process.to_string()));
    let file = SharedFile::open(&path)?;
    LineWriter::start(Target { path, file })
}

/// A file that all workers of the process append to.
struct SharedFile(Mutex<Appended>);

struct Appended {
    file: File,
    /// Up to here there are whole lines.
    length: u64,
}

/// The files that this process has open: two workers must not cut each other's last line.
static OPEN: Mutex<Option<HashMap<PathBuf, Weak<SharedFile>>>> = Mutex::new(None);

impl SharedFile {
    fn open(path: &Path) -> Result<Arc<SharedFile>, Fault> {
        let fault = |error: io::Error| {
            Fault::new(
                ErrorClass::StoreIo,
                format!("the file sink {} cannot be opened: {error}", path.display()),
            )
        };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_default();
        open.retain(|_, file| file.strong_count() > 0);
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(fault)?;
        let name = path.canonicalize().map_err(fault)?;
        if let Some(file) = open.get(&name).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let begin = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // The thread of a sink that this process has just left may not be gone yet.
                Err(TryLockError::WouldBlock) if begin.elapsed() < LOCK_WITHIN => {
                    std::thread::sleep(RETRY_PAUSE_MIN);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(Fault::new(
                        ErrorClass::TryAgain,
                        format!("the file sink {} is being written by another process", path.display()),
                    ));
                }
                Err(TryLockError::Error(error)) => return Err(fault(error)),
            }
        }
        let length = cut_torn_line(&mut file, path).map_err(fault)?;
        if let Some(folder) = name.parent() {
            // The entry of a file that was just made must be durable before a line in it counts.
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(fault)?;
        }
        let file = Arc::new(SharedFile(Mutex::new(Appended { file, length })));
        open.insert(name, Arc::downgrade(&file));
        Ok(file)
    }
}

/// Cuts off what stands behind the last line end; returns the length of what stays.
fn cut_torn_line(file: &mut File, path: &Path) -> io::Result<u64> {
    const BLOCK: u64 = 64 << 10;
    let length = file.metadata()?.len();
    let mut end = length;
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        Read::by_ref(file).take(end - start).read_to_end(&mut block)?;
        if let Some(place) = block.iter().rposition(|byte| *byte == b'\n') {
            end = start + place as u64 + 1;
            break;
        }
        end = start;
    }
    if end < length {
        tracing::warn!(
            file = %path.display(),
            bytes = length - end,
            "a torn last line was cut off; it was never acknowledged"
        );
        file.set_len(end)?;
        file.sync_all()?;
    }
    Ok(end)
}

struct Target {
    path: PathBuf,
    file: Arc<SharedFile>,
}

impl LineTarget for Target {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut appended = self.file.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = Instant::now();
        let mut pause = RETRY_PAUSE_MIN;
        loop {
            match appended.file.write_all(lines) {
                Ok(()) => {
                    appended.length += lines.len() as u64;
                    return Ok(());
                }
                Err(error) if begin.elapsed() < RETRY_FOR => {
                    tracing::warn!(file = %self.path.display(), %error, "writing is tried again");
                    // Half a line may be there.
                    appended.file.set_len(appended.length)?;
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(RETRY_PAUSE_MAX);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        // Not tried again: after a failed sync nobody knows what is durable. The lock is not held meanwhile.
        let file = self.file.0.lock().unwrap_or_else(PoisonError::into_inner).file.try_clone()?;
        file.sync_data()
    }

    fn name(&self) -> String {
        format!("the file sink {}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Element, Headers, Meta, PartitionId, Record};
    use crate::sink::{SinkWriter, Ticket};
    use tidegate_recovery::EventTime;

    fn elements(values: &[Option<&str>]) -> Vec<Element<Record>> {
        values
            .iter()
            .map(|value| Element {
                value: Record {
                    key: None,
                    value: value.map(|v| bytes::Bytes::copy_from_slice(v.as_bytes())),
                },
                meta: Meta {
                    partition: PartitionId::NONE,
                    offset: -1,
                    timestamp: None,
                    event: EventTime::MIN,
                    watermark: EventTime::MIN,
                    headers: Headers::default(),
                    original: None,
                },
            })
            .collect()
    }

    fn write(writer: &mut LineWriter, ticket: u64, values: &[Option<&str>]) {
        let elements = elements(values);
        assert_eq!(writer.submit(Ticket(ticket), &elements, false).unwrap(), elements.len());
        let mut done = Vec::new();
        let begin = Instant::now();
        while done != [Ticket(ticket)] {
            writer.acknowledged(&mut done, &mut Vec::new()).unwrap();
            assert!(begin.elapsed() < Duration::from_secs(20), "the lines are not acknowledged");
            std::thread::yield_now();
        }
    }

    #[test]
    fn values_are_lines_and_a_torn_last_line_is_cut_before_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let template = folder.path().join("out-{process}.txt");
        let path = folder.path().join("out-3.txt");
        let open = || writer(template.to_str().unwrap(), ProcessIndex(3), 4);
        std::fs::write(&path, "old\nto").unwrap();
        let mut writer = open().unwrap();
        write(&mut writer, 1, &[Some("a"), None, Some("b")]);
        assert_eq!(writer.in_flight_bytes(), 0);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old\na\nb\n");
        // A second worker of the process shares the file.
        let mut second = open().unwrap();
        write(&mut second, 1, &[Some("c")]);
        write(&mut writer, 2, &[Some("d"), Some("")]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old\na\nb\nc\nd\n\n");
    }

    #[test]
    fn a_torn_line_longer_than_a_block_is_cut_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        for (before, kept) in [("one\n", "one\n"), ("", "")] {
            std::fs::write(&path, format!("{before}{}", "x".repeat(200_000))).unwrap();
            let mut file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
            assert_eq!(cut_torn_line(&mut file, &path).unwrap(), kept.len() as u64);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), kept);
        }
    }

    #[test]
    fn several_processes_need_a_path_each() {
        let fault = writer("/tmp/never-made", ProcessIndex(0), 2).err().unwrap();
        assert_eq!(fault.class, ErrorClass::Config);
        assert!(fault.message.contains(PROCESS));
    }

    #[test]
    fn a_folder_that_is_missing_is_named() {
        let fault = writer("/no/such/folder/f", ProcessIndex(0), 1).err().unwrap();
        assert_eq!(fault.class, ErrorClass::StoreIo);
        assert!(fault.message.contains("/no/such/folder/f"));
    }

    #[test]
    fn a_target_that_fails_is_the_sinks_fault_and_nothing_is_acknowledged() {
        struct Closed;
        impl LineTarget for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<()> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn sync(&mut self) -> io::Result<()> {
                Ok(())
            }
            fn name(&self) -> String {
                "the standard output".to_owned()
            }
        }
        let mut writer = LineWriter::start(Closed).unwrap();
        writer.submit(Ticket(1), &elements(&[Some("a")]), false).unwrap();
        let mut done = Vec::new();
        let begin = Instant::now();
        let fault = loop {
            if let Err(fault) = writer.acknowledged(&mut done, &mut Vec::new()) {
                break fault;
            }
            assert!(begin.elapsed() < Duration::from_secs(20));
        };
        assert_eq!(fault.class.exit_code(), 74);
        assert!(done.is_empty());
        assert!(writer.submit(Ticket(2), &elements(&[Some("a")]), false).is_err());
    }
}
