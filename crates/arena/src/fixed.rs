//! A vector that never grows.

/// Up to `capacity` values, allocated once. Pushing past the capacity is a bug and asserts.
#[derive(Debug)]
pub struct FixedVec<T> {
    items: Vec<T>,
    capacity: usize,
}

impl<T> FixedVec<T> {
    /// Room for `capacity` values.
    pub fn new(capacity: usize) -> Self {
        FixedVec { items: Vec::with_capacity(capacity), capacity }
    }

    /// Appends within the capacity.
    pub fn push(&mut self, value: T) {
        assert!(self.items.len() < self.capacity, "a fixed vector of {} is full", self.capacity);
        self.items.push(value);
    }

    /// Forgets every value; keeps the memory.
    pub fn clear(&mut self) {
        self.items.clear();
    }
}

impl<T: Copy> FixedVec<T> {
    /// Replaces the content; `values` must fit.
    pub fn assign(&mut self, values: &[T]) {
        self.clear();
        self.append(values);
    }

    /// Appends all of `values`; they must fit.
    pub fn append(&mut self, values: &[T]) {
        let len = self.items.len() + values.len();
        assert!(len <= self.capacity, "a fixed vector of {} cannot hold {len}", self.capacity);
        self.items.extend_from_slice(values);
    }
}

impl<T> std::ops::Deref for FixedVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "is full")]
    fn a_full_vector_refuses() {
        let mut two = FixedVec::new(2);
        (0..3).for_each(|i| two.push(i));
    }
}
