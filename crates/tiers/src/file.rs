//! KV-disk's file: reserved whole, held by one process, read and written by two threads.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ignis_backend::{Disk, DiskAction, DiskDone, DiskError, DiskOp};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::error::TierError;

/// Name of the file in the folder of KV-disk.
pub const FILE_NAME: &str = "kv-disk.ignis";

/// Threads that carry out operations.
const WORKERS: usize = 2;
/// Operations that may be in flight at once.
const DEPTH: usize = 8;
/// Bytes of a sector as `stat` counts them.
const SECTOR: u64 = 512;

/// A file on a volume, as a disk.
#[derive(Debug)]
pub struct FileDisk {
    path: PathBuf,
    bytes: u64,
    direct: bool,
    in_flight: usize,
    /// `None` only while it is dropped.
    jobs: Option<SyncSender<DiskOp>>,
    done: Receiver<DiskDone>,
    workers: Vec<JoinHandle<()>>,
}

impl FileDisk {
    /// Opens or makes the file in `folder`, which is made if need be; locks it for this process;
    /// gives it `bytes` and has the volume reserve them all, of which `margin` more must be free.
    ///
    /// What the file holds is kept, so far as its size allows. A file that could not be had is left
    /// as it was.
    pub fn open(folder: &Path, bytes: u64, margin: u64) -> Result<FileDisk, TierError> {
        let path = folder.join(FILE_NAME);
        let fault = |action, error: io::Error| TierError::File {
            action,
            path: path.clone(),
            reason: error.to_string(),
        };
        fs::create_dir_all(folder).map_err(|error| fault("make the folder of", error))?;
        let is_new = !path.exists();
        let (file, direct) = open_direct(&path).map_err(|error| fault("open", error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(TierError::Locked { path }),
            Err(TryLockError::Error(error)) => return Err(fault("lock", error)),
        }
        let bytes_before = file.metadata().map_err(|error| fault("look at", error))?.len();
        let sized = reserve(&file, &path, bytes, margin);
        if let Err(error) = sized {
            // The failure to report is the first one.
            let _ = if is_new { fs::remove_file(&path) } else { file.set_len(bytes_before) };
            return Err(error);
        }
        let file = Arc::new(file);
        let (jobs, queue) = sync_channel(DEPTH);
        let (results, done) = sync_channel(DEPTH);
        let queue = Arc::new(Mutex::new(queue));
        let mut disk = FileDisk {
            path: path.clone(),
            bytes,
            direct,
            in_flight: 0,
            jobs: Some(jobs),
            done,
            workers: Vec::with_capacity(WORKERS),
        };
        for number in 0..WORKERS {
            let (file, queue, results) = (file.clone(), queue.clone(), results.clone());
            let worker = std::thread::Builder::new()
                .name(format!("kv-disk-{number}"))
                .spawn(move || work(&file, &queue, &results))
                .map_err(|error| fault("start a thread for", error))?;
            disk.workers.push(worker);
        }
        Ok(disk)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if operations go past the system's page cache; false where the volume cannot.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

impl Disk for FileDisk {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn depth(&self) -> usize {
        DEPTH
    }

    fn start(&mut self, op: DiskOp) {
        assert!(self.in_flight < DEPTH, "at most {DEPTH} operations are in flight");
        assert!(op.offset + op.bytes as u64 <= self.bytes, "an operation lies inside the file");
        self.in_flight += 1;
        let jobs = self.jobs.as_ref().expect("the channel lives as long as the disk");
        jobs.send(op).expect("the workers live as long as the disk");
    }

    fn finished(&mut self, wait: Duration) -> Option<DiskDone> {
        if self.in_flight == 0 {
            return None;
        }
        let done = match self.done.try_recv() {
            Err(TryRecvError::Empty) if !wait.is_zero() => match self.done.recv_timeout(wait) {
                Ok(done) => done,
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => unreachable!("a worker never ends first"),
            },
            Ok(done) => done,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => unreachable!("a worker never ends first"),
        };
        self.in_flight -= 1;
        Some(done)
    }
}

impl Drop for FileDisk {
    /// Lets the operations in flight finish and ends the threads; the lock goes with the file.
    fn drop(&mut self) {
        self.jobs = None;
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// Bytes that a file of KV-disk in `folder` could have, a margin apart: those free to this process
/// on the folder's volume, and those that the file occupies already. Makes nothing; a folder that
/// does not exist yet is judged by the nearest one above it.
pub fn file_room(folder: &Path) -> Result<u64, TierError> {
    let path = folder.join(FILE_NAME);
    let occupied = fs::metadata(&path).map_or(0, |found| found.blocks() * SECTOR);
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    let nearest = absolute.ancestors().find(|above| above.exists()).unwrap_or(&absolute);
    let volume = rustix::fs::statvfs(nearest).map_err(|error| TierError::File {
        action: "ask for the free space of",
        path: path.clone(),
        reason: error.to_string(),
    })?;
    Ok(volume.f_bavail.saturating_mul(volume.f_frsize).saturating_add(occupied))
}

/// The file, unbuffered where the volume can.
fn open_direct(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    // What a conversation left there is for its server's user only.
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    #[cfg(target_os = "linux")]
    {
        let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        match options.clone().custom_flags(flags).open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
            opened => return opened.map(|file| (file, true)),
        }
    }
    options.open(path).map(|file| (file, false))
}

/// Gives the file its size and has the volume reserve it.
fn reserve(file: &File, path: &Path, bytes: u64, margin: u64) -> Result<(), TierError> {
    let fault = |action, reason: String| TierError::File { action, path: path.into(), reason };
    let available = file_room(path.parent().expect("the file lies in a folder"))?;
    let full = TierError::VolumeFull { path: path.into(), needed: bytes, available, margin };
    if bytes.saturating_add(margin) > available {
        return Err(full);
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => file.set_len(bytes).map_err(|error| fault("size", error.to_string())),
        Err(Errno::NOSPC | Errno::DQUOT) => Err(full),
        Err(Errno::OPNOTSUPP) => {
            Err(fault("reserve", "its file system cannot reserve space for a file".into()))
        }
        Err(error) => Err(fault("reserve", error.to_string())),
    }
}

fn work(file: &File, queue: &Mutex<Receiver<DiskOp>>, results: &SyncSender<DiskDone>) {
    loop {
        // The lock is held while waiting: one worker waits for the next operation, the other for
        // it.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(mut op) = next else { return };
        let result = carry_out(file, &mut op);
        if results.send(DiskDone { op, result }).is_err() {
            return;
        }
    }
}

fn carry_out(file: &File, op: &mut DiskOp) -> Result<(), DiskError> {
    let (action, offset, bytes) = (op.action, op.offset, op.bytes as u64);
    let mut done = 0;
    while done < op.bytes {
        let at = offset + done as u64;
        let part = done..op.bytes;
        let result = match action {
            DiskAction::Read => file.read_at(&mut op.buffer[part], at),
            DiskAction::Write => file.write_at(&op.buffer[part], at),
        };
        match result {
            Ok(0) => return Err(DiskError::Short { action, offset, bytes, done: done as u64 }),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                return Err(DiskError::Full { offset, bytes });
            }
            Err(error) => {
                return Err(DiskError::Io { action, offset, bytes, reason: error.to_string() });
            }
        }
    }
    Ok(())
}
