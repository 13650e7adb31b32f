//! How much of the card's memory the driver took between two moments.

use std::time::Duration;

use ignis_types::Bytes;

use crate::card::Card;
use crate::found::card_memory;
use crate::nvml;

/// Most readings of free memory until two are equal.
const READINGS: u32 = 50;
/// Between them.
const PAUSE: Duration = Duration::from_millis(10);

/// The card's memory at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Counted to this process; `None` where the driver does not say, and before the process has
    /// anything on the card.
    own: Option<u64>,
    /// Free on the whole card, in two readings that agree: another process may be at work.
    free: u64,
}

impl Look {
    /// Now.
    pub(crate) fn at(card: &Card) -> Look {
        let free = || card_memory(card).map_or(0, |(_, free)| free.0);
        let own = nvml::process_bytes(&card.id, std::process::id());
        // Where this process is counted, free memory decides nothing.
        Look { own, free: if own.is_some() { free() } else { settled(free, PAUSE) } }
    }

    /// What was taken from then until `later`: what is counted to this process, or else what has
    /// gone from the whole card, which other processes have a part in.
    pub(crate) fn taken_until(&self, later: &Look) -> Bytes {
        Bytes(match later.own {
            Some(own) => own.saturating_sub(self.own.unwrap_or(0)),
            None => self.free.saturating_sub(later.free),
        })
    }
}

/// The first reading that the next one repeats, or the last.
fn settled(mut read: impl FnMut() -> u64, pause: Duration) -> u64 {
    let mut last = read();
    for _ in 1..READINGS {
        std::thread::sleep(pause);
        let next = read();
        if next == last {
            break;
        }
        last = next;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_take_is_not_counted_where_this_process_is() {
        let look = |own, free| Look { own, free };
        let taken = |from: Look, to: Look| from.taken_until(&to).0;
        assert_eq!(taken(look(None, 900), look(Some(500), 100)), 500);
        assert_eq!(taken(look(Some(500), 900), look(Some(504), 100)), 4);
        assert_eq!(taken(look(None, 900), look(None, 400)), 500);
        assert_eq!(taken(look(None, 400), look(None, 900)), 0);
    }

    #[test]
    fn a_reading_counts_when_it_is_repeated() {
        let mut readings = [9, 7, 5, 5, 3].into_iter();
        assert_eq!(settled(|| readings.next().unwrap(), Duration::ZERO), 5);
        let mut falling = 1000;
        let read = || {
            falling -= 1;
            falling
        };
        assert_eq!(settled(read, Duration::ZERO), 1000 - u64::from(READINGS));
    }
}
