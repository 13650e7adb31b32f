//! Which window belongs to which image: chains through one table, and the chain of those free.

/// Ends a chain.
pub(crate) const END: u32 = u32::MAX;

/// The windows of one store. Each is free, or on the chain of one owner, exactly once.
#[derive(Debug)]
pub(crate) struct Chains {
    /// By window: the next on its chain, or `END`.
    next: Vec<u32>,
    free_first: u32,
    free: u32,
}

impl Chains {
    /// All of `count` windows free, to be handed out in ascending order.
    pub(crate) fn new(count: u32) -> Chains {
        let next = (1..=count).map(|next| if next < count { next } else { END }).collect();
        Chains { next, free_first: if count > 0 { 0 } else { END }, free: count }
    }

    pub(crate) fn total(&self) -> u32 {
        self.next.len() as u32
    }

    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// The window after `window` on its chain, or `END`.
    pub(crate) fn next(&self, window: u32) -> u32 {
        self.next[window as usize]
    }

    /// The windows of the chain that starts with `first`.
    pub(crate) fn iter(&self, first: u32) -> impl Iterator<Item = u32> {
        let ahead = |window: u32| (window != END).then_some(window);
        std::iter::successors(ahead(first), move |&window| ahead(self.next(window)))
    }

    /// Takes `count` windows, at least 1, as one chain; `None` if so many are not free.
    pub(crate) fn take(&mut self, count: u32) -> Option<u32> {
        if count == 0 || count > self.free {
            return None;
        }
        let first = self.free_first;
        let last = self.last(first, count);
        self.free_first = std::mem::replace(&mut self.next[last as usize], END);
        self.free -= count;
        Some(first)
    }

    /// Gives a whole chain back; the next to take gets them in the same order.
    pub(crate) fn put(&mut self, first: u32) {
        let most = (self.total() - self.free) as usize;
        let count = self.iter(first).take(most + 1).count() as u32;
        assert!(count as usize <= most, "a window was freed twice");
        let last = self.last(first, count);
        self.next[last as usize] = std::mem::replace(&mut self.free_first, first);
        self.free += count;
    }

    /// Cuts a chain into single windows, of which those that `keep` names stay taken.
    pub(crate) fn put_except(&mut self, first: u32, mut keep: impl FnMut(u32) -> bool) {
        let mut window = first;
        while window != END {
            let next = std::mem::replace(&mut self.next[window as usize], END);
            if !keep(window) {
                self.put(window);
            }
            window = next;
        }
    }

    /// Takes exactly these windows, all free, as one chain. Each free window must be passed once to
    /// rebuild the rest, so this is for the start only.
    pub(crate) fn claim(&mut self, list: &[u32]) {
        for pair in list.windows(2) {
            self.next[pair[0] as usize] = pair[1];
        }
        self.next[*list.last().expect("an image has a window") as usize] = END;
    }

    /// Makes a chain of all windows that `taken` does not name: the free ones. For the start only.
    pub(crate) fn settle(&mut self, taken: &[bool]) {
        self.free_first = END;
        self.free = 0;
        for window in (0..self.total()).rev().filter(|&window| !taken[window as usize]) {
            self.next[window as usize] = self.free_first;
            self.free_first = window;
            self.free += 1;
        }
    }

    fn last(&self, first: u32, count: u32) -> u32 {
        self.iter(first).nth(count as usize - 1).expect("a chain is as long as it was made")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_whole_or_not_at_all() {
        let mut chains = Chains::new(5);
        let (two, three) = (chains.take(2).unwrap(), chains.take(3).unwrap());
        assert_eq!(chains.iter(three).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!((chains.take(1), chains.free()), (None, 0));
        chains.put(two);
        assert_eq!((chains.take(3), chains.free()), (None, 2));
        chains.put_except(three, |window| window == 3);
        assert_eq!(chains.free(), 4);
        chains.put(3);
        let all = chains.take(5).unwrap();
        let mut windows: Vec<u32> = chains.iter(all).collect();
        windows.sort_unstable();
        assert_eq!(windows, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn windows_found_at_the_start_are_taken_in_their_order() {
        let mut chains = Chains::new(5);
        chains.claim(&[3, 0]);
        chains.settle(&[true, false, false, true, false]);
        assert_eq!(chains.iter(3).collect::<Vec<_>>(), [3, 0]);
        assert_eq!(chains.free(), 3);
        let rest = chains.take(3).unwrap();
        assert_eq!(chains.iter(rest).collect::<Vec<_>>(), [1, 2, 4]);
    }
}
