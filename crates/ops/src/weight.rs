//! A weight of a program: where it comes from, and what the loader does to it.

use std::sync::Arc;

use ignis_types::DType;

/// What a weight is used for; a device chooses its layout by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightKind {
    /// `[out, in]`, read by [`Linear`](crate::Linear).
    Matrix,
    /// `[vocab, hidden]`, read by [`Embed`](crate::Embed) a row at a time.
    Table,
    /// A [`WeightKind::Matrix`] that is read as a table too: tied embeddings.
    TableAndMatrix,
    /// `[experts * out, in]`, read by [`ExpertLinear`](crate::ExpertLinear) an expert at a time.
    Experts {
        /// How many matrices lie one after another.
        count: u32,
    },
    /// `[n]`, expanded to f32.
    Vector,
}

/// The order of a weight's rows (of a vector's elements) in the file, and so what the loader does
/// to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// As the program wants them, and all of them.
    AsStored,
    /// Row `i` of the program is stored row `pick[i]`. Stored rows may go unused: two weights can
    /// share a tensor.
    Picked(Arc<[u32]>),
}

impl RowOrder {
    /// The rows that `picks` names, in its order.
    pub fn picked(picks: impl IntoIterator<Item = u32>) -> RowOrder {
        RowOrder::Picked(picks.into_iter().collect())
    }

    /// llama GGUF: each head's rotary pairs are adjacent (`[heads, head_dim/2, 2]`); the program
    /// wants halves (`[heads, 2, head_dim/2]`). `head_dim` is even and divides `rows`.
    pub fn adjacent_pairs(rows: u32, head_dim: u32) -> RowOrder {
        RowOrder::picked((0..rows).map(|row| {
            let (head, at) = (row / head_dim, row % head_dim);
            let (half, pair) = (at / (head_dim / 2), at % (head_dim / 2));
            head * head_dim + 2 * pair + half
        }))
    }

    /// The stored row of program row `row`.
    pub fn stored_row(&self, row: u32) -> u32 {
        match self {
            RowOrder::AsStored => row,
            RowOrder::Picked(picks) => picks[row as usize],
        }
    }
}

/// What the loader does to the values of a vector, in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorMap {
    /// Nothing.
    AsStored,
    /// 1 + w: gains stored around zero.
    PlusOne,
    /// -exp(w): rates stored as the logarithm of their size.
    NegExp,
}

impl VectorMap {
    /// One value.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            VectorMap::AsStored => x,
            VectorMap::PlusOne => 1.0 + x,
            VectorMap::NegExp => -x.exp(),
        }
    }
}

/// One weight of a program and where it comes from.
#[derive(Clone, Debug)]
pub struct WeightSpec {
    /// For plans and errors: the name of the first tensor.
    pub name: String,
    /// Further tensors of the checkpoint, of the first one's shape: one for each further expert.
    pub joined: Vec<String>,
    /// Stored dtype.
    pub dtype: DType,
    /// Rows (`out`, `vocab`, those of all experts); 1 for a vector.
    pub rows: u32,
    /// Columns (`in`, `hidden`, the vector's length).
    pub cols: u32,
    /// How it is used.
    pub kind: WeightKind,
    /// How its rows (a vector's elements) are ordered in the file.
    pub order: RowOrder,
    /// What is done to a vector's values.
    pub map: VectorMap,
}

impl WeightSpec {
    /// A weight that is one tensor, as it is stored.
    pub fn new(name: String, dtype: DType, rows: u32, cols: u32, kind: WeightKind) -> WeightSpec {
        let (order, map) = (RowOrder::AsStored, VectorMap::AsStored);
        WeightSpec { name, joined: Vec::new(), dtype, rows, cols, kind, order, map }
    }

    /// Names of its tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.joined.iter().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_pairs_become_halves() {
        let order = RowOrder::adjacent_pairs(16, 8);
        let rows: Vec<u32> = (0..16).map(|row| order.stored_row(row)).collect();
        assert_eq!(rows, [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]);
    }
}
