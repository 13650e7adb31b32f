//! Worker threads that walk one program together.
//!
//! Purpose: every worker runs the same function over the same steps and meets the others at a
//! [`Worker::barrier`] between two of them; there is no queue and no task object.
//!
//! Key properties:
//! - The calling thread is worker 0; a pool of one has no other thread and no barrier.
//! - A waiting thread spins briefly, yields for a bounded time and then sleeps, so an idle pool
//!   uses no processor and an oversubscribed machine makes progress.
//! - A round allocates nothing.
//! - A panic poisons the pool: the others leave at their next barrier, the round fails, and so
//!   does every later one.

use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a waiting thread keeps its processor: longer than the usual imbalance between two
/// barriers.
const SPIN: Duration = Duration::from_micros(15);

/// How long it then offers its processor before it sleeps: longer than the usual pause between two
/// decode rounds. On a busy machine the one waited for may sit behind the waiter on the same
/// processor, so to spin all this time would cost it at each barrier.
const YIELD: Duration = Duration::from_micros(150);

/// The pool lost a worker to a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Poisoned;

/// A count that threads wait on until it moves.
#[derive(Default)]
struct Gate {
    turn: AtomicU32,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Gate {
    fn turn(&self) -> u32 {
        self.turn.load(SeqCst)
    }

    /// Lets everybody pass who waits for the present turn to end.
    fn open(&self) {
        self.turn.fetch_add(1, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            // The lock orders this after a sleeper's last look at the turn.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    /// Returns once the turn is no longer `turn`.
    fn pass(&self, turn: u32) {
        for _ in 0..64 {
            if self.turn() != turn {
                return;
            }
            spin_loop();
        }
        let start = Instant::now();
        loop {
            for _ in 0..32 {
                if self.turn() != turn {
                    return;
                }
                spin_loop();
            }
            match start.elapsed() {
                waited if waited < SPIN => {}
                waited if waited < YIELD => std::thread::yield_now(),
                _ => break,
            }
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, SeqCst);
        while self.turn() == turn {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }
}

/// What a round does: called once by every worker with the caller's context.
type Entry = unsafe fn(*const (), Worker<'_>) -> Result<(), Poisoned>;

/// The present round's entry and context; written by the caller while all workers wait.
struct Job(std::cell::UnsafeCell<(Entry, *const ())>);

// SAFETY: written only between two rounds, before `start` opens, and read only after it.
unsafe impl Sync for Job {}
// SAFETY: as above; the context is `Sync` by the contract of `Pool::run`.
unsafe impl Send for Job {}

struct Shared {
    count: u32,
    job: Job,
    start: Gate,
    done: Gate,
    barrier: Gate,
    arrived: AtomicU32,
    running: AtomicU32,
    poisoned: AtomicBool,
    stop: AtomicBool,
}

impl Shared {
    fn call(&self, index: usize) -> Result<(), Poisoned> {
        // SAFETY: the caller wrote the job before it opened `start`.
        let (entry, context) = unsafe { *self.job.0.get() };
        let worker = Worker { shared: self, index };
        // SAFETY: `run`'s caller vouches for entry and context.
        let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { entry(context, worker) }));
        outcome.unwrap_or_else(|_| {
            self.poisoned.store(true, SeqCst);
            self.barrier.open();
            Err(Poisoned)
        })
    }
}

/// One thread's part in a round.
#[derive(Clone, Copy)]
pub(crate) struct Worker<'a> {
    shared: &'a Shared,
    /// `0..count`; 0 is the calling thread.
    pub(crate) index: usize,
}

impl Worker<'_> {
    /// Workers in the round.
    pub(crate) fn count(&self) -> usize {
        self.shared.count as usize
    }

    /// Returns when every worker has called it; what they wrote before is then visible to all.
    pub(crate) fn barrier(&self) -> Result<(), Poisoned> {
        let shared = self.shared;
        if shared.count == 1 {
            return Ok(());
        }
        let turn = shared.barrier.turn();
        if shared.poisoned.load(SeqCst) {
            return Err(Poisoned);
        }
        if shared.arrived.fetch_add(1, SeqCst) + 1 == shared.count {
            shared.arrived.store(0, SeqCst);
            shared.barrier.open();
        } else {
            shared.barrier.pass(turn);
        }
        if shared.poisoned.load(SeqCst) { Err(Poisoned) } else { Ok(()) }
    }
}

/// Persistent worker threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `count` workers, the caller's thread among them.
    pub(crate) fn new(count: usize) -> std::io::Result<Pool> {
        let count = count.max(1);
        unsafe fn nothing(_: *const (), _: Worker<'_>) -> Result<(), Poisoned> {
            Ok(())
        }
        let shared = Arc::new(Shared {
            count: count as u32,
            job: Job(std::cell::UnsafeCell::new((nothing, std::ptr::null()))),
            start: Gate::default(),
            done: Gate::default(),
            barrier: Gate::default(),
            arrived: AtomicU32::new(0),
            running: AtomicU32::new(0),
            poisoned: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut pool = Pool { shared, threads: Vec::with_capacity(count - 1) };
        for index in 1..count {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("ignis-cpu-{index}"))
                .spawn(move || work(&shared, index))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Workers, the calling thread included.
    pub(crate) fn count(&self) -> usize {
        self.shared.count as usize
    }

    /// Calls `entry(context, worker)` on every worker and returns when all have.
    ///
    /// # Safety
    /// `entry` must accept `context` on every thread at once.
    pub(crate) unsafe fn run(&mut self, entry: Entry, context: *const ()) -> Result<(), Poisoned> {
        let shared = &*self.shared;
        if shared.poisoned.load(SeqCst) {
            return Err(Poisoned);
        }
        // SAFETY: `&mut self` and the end of the last round: every worker waits at `start`.
        unsafe { *shared.job.0.get() = (entry, context) };
        shared.arrived.store(0, SeqCst);
        shared.running.store(shared.count - 1, SeqCst);
        let turn = shared.done.turn();
        shared.start.open();
        let own = shared.call(0);
        if shared.count > 1 {
            shared.done.pass(turn);
        }
        if shared.poisoned.load(SeqCst) { Err(Poisoned) } else { own }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.start.open();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, index: usize) {
    // Turns are counted from the pool's birth, so a round opened before this thread ran is not
    // lost.
    let mut turn = 0;
    loop {
        shared.start.pass(turn);
        turn = turn.wrapping_add(1);
        if shared.stop.load(SeqCst) {
            return;
        }
        // A failure is on record in `poisoned`.
        let _ = shared.call(index);
        if shared.running.fetch_sub(1, SeqCst) == 1 {
            shared.done.open();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sums {
        cells: [AtomicU32; 4],
        steps: u32,
    }

    unsafe fn add_up(context: *const (), worker: Worker<'_>) -> Result<(), Poisoned> {
        // SAFETY: the test passes a `Sums` that outlives the round.
        let sums = unsafe { &*context.cast::<Sums>() };
        for step in 0..sums.steps {
            sums.cells[worker.index].fetch_add(1, SeqCst);
            worker.barrier()?;
            for cell in &sums.cells[..worker.count()] {
                assert_eq!(cell.load(SeqCst), step + 1);
            }
            worker.barrier()?;
        }
        Ok(())
    }

    #[test]
    fn nobody_passes_a_barrier_early() {
        for count in 1..=4 {
            let mut pool = Pool::new(count).unwrap();
            for _ in 0..20 {
                let sums = Sums { cells: Default::default(), steps: 50 };
                // SAFETY: `sums` is Sync and outlives the call.
                unsafe { pool.run(add_up, (&raw const sums).cast()) }.unwrap();
            }
        }
    }

    unsafe fn break_down(_: *const (), worker: Worker<'_>) -> Result<(), Poisoned> {
        worker.barrier()?;
        assert_ne!(worker.index, 1, "a worker breaks down on purpose");
        worker.barrier()
    }

    #[test]
    fn a_panic_fails_the_round_and_every_later_one() {
        let mut pool = Pool::new(3).unwrap();
        // SAFETY: the entry ignores its context.
        unsafe {
            assert_eq!(pool.run(break_down, std::ptr::null()), Err(Poisoned));
            assert_eq!(pool.run(break_down, std::ptr::null()), Err(Poisoned));
        }
    }

    #[test]
    fn an_idle_pool_wakes_up_again() {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..3 {
            let sums = Sums { cells: Default::default(), steps: 2 };
            // SAFETY: `sums` is Sync and outlives the call.
            unsafe { pool.run(add_up, (&raw const sums).cast()) }.unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
