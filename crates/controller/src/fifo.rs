//! A queue of operations.

use crate::operation::Operation;

/// Operations in the order in which they came. Unlike a ring buffer it stores them contiguously, so that they are
/// pushed and taken as one slice without an intermediate copy.
#[derive(Debug, Default)]
pub(crate) struct Fifo {
    operations: Vec<Operation>,
    /// Index of the first operation that is left.
    first: usize,
}

impl Fifo {
    pub(crate) fn len(&self) -> usize {
        self.operations.len() - self.first
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn push_back(&mut self, operation: Operation) {
        self.operations.push(operation);
    }

    /// Puts operations before all others, in their order.
    pub(crate) fn put_back(&mut self, operations: &[Operation]) {
        match self.first.checked_sub(operations.len()) {
            Some(first) => {
                self.operations[first..self.first].copy_from_slice(operations);
                self.first = first;
            }
            None => {
                self.operations.splice(..self.first, operations.iter().copied());
                self.first = 0;
            }
        }
    }

    /// Moves the first `count` operations to the end of `to`.
    #[inline]
    pub(crate) fn move_first(&mut self, count: usize, to: &mut Vec<Operation>) {
        let end = self.first + count;
        to.extend_from_slice(&self.operations[self.first..end]);
        self.first = end;
        if end == self.operations.len() {
            self.operations.clear();
            self.first = 0;
        } else if end >= self.operations.len() / 2 {
            self.operations.drain(..end);
            self.first = 0;
        }
    }

    pub(crate) fn shrink_to(&mut self, count: usize) {
        self.operations.shrink_to(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_chain::ChainId;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        PushBack,
        PutBack(usize),
        Move(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::PushBack),
            1 => (0..40usize).prop_map(Step::PutBack),
            1 => (0..40usize).prop_map(Step::Move),
        ]
    }

    fn operation(number: usize) -> Operation {
        Operation::ChainCalls { chain: ChainId::from_index(number) }
    }

    fn numbers(operations: &[Operation]) -> Vec<usize> {
        operations.iter().map(|of| of.chain().expect("a chain's").index()).collect()
    }

    proptest! {
        /// It behaves like a double-ended queue.
        #[test]
        fn operations_keep_their_order(steps in proptest::collection::vec(step(), 0..400)) {
            let (mut fifo, mut model) = (Fifo::default(), Vec::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::PushBack => {
                        fifo.push_back(operation(number));
                        model.push(number);
                    }
                    Step::PutBack(count) => {
                        let new: Vec<_> = (0..count).map(|index| 1000 * number + index).collect();
                        let operations: Vec<_> = new.iter().map(|of| operation(*of)).collect();
                        fifo.put_back(&operations);
                        model.splice(..0, new);
                    }
                    Step::Move(count) => {
                        let count = count.min(fifo.len());
                        let mut moved = Vec::new();
                        fifo.move_first(count, &mut moved);
                        prop_assert_eq!(numbers(&moved), model.drain(..count).collect::<Vec<_>>());
                    }
                }
                prop_assert_eq!((fifo.len(), fifo.is_empty()), (model.len(), model.is_empty()));
            }
            let mut all = Vec::new();
            fifo.move_first(fifo.len(), &mut all);
            prop_assert_eq!(numbers(&all), model);
        }
    }
}
