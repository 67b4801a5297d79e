//! The order in which instructions are visited: a weak topological order (Bourdoncle, "Efficient
//! chaotic iteration strategies with widenings", 1993), in which each loop is one component.

use prevail::cfg::graph::Cfg;
use prevail::cfg::label::Label;
use std::collections::HashMap;

/// An instruction, or a loop.
#[derive(Debug, PartialEq)]
pub(crate) enum Component {
    Label(Label),
    Loop(Loop),
}

/// A loop: the label at which its state is widened, and the other components in order.
#[derive(Debug, PartialEq)]
pub(crate) struct Loop {
    pub(crate) head: Label,
    pub(crate) body: Vec<Component>,
}

impl Loop {
    /// All labels, including those of inner loops.
    pub(crate) fn labels(&self) -> Vec<Label> {
        let mut labels = vec![self.head.clone()];
        for component in &self.body {
            match component {
                Component::Label(label) => labels.push(label.clone()),
                Component::Loop(inner) => labels.extend(inner.labels()),
            }
        }
        labels
    }
}

/// The order of all labels reachable from the entry.
pub(crate) fn order(graph: &Cfg) -> Vec<Component> {
    let mut search = Search { graph, numbers: HashMap::new(), count: 0, stack: Vec::new() };
    let mut order = Vec::new();
    search.visit(&graph.entry_label(), &mut order);
    order.reverse();
    order
}

/// The number of labels that have been placed.
const PLACED: usize = usize::MAX;

struct Search<'a> {
    graph: &'a Cfg,
    /// By label: its number in the order of discovery, from 1.
    numbers: HashMap<Label, usize>,
    count: usize,
    stack: Vec<Label>,
}

impl Search<'_> {
    /// Appends the labels reachable from `label` to `order`, last first. Returns the lowest number
    /// reached.
    fn visit(&mut self, label: &Label, order: &mut Vec<Component>) -> usize {
        self.stack.push(label.clone());
        self.count += 1;
        let number = self.count;
        self.numbers.insert(label.clone(), number);
        let (mut lowest, mut is_loop) = (number, false);
        for child in self.graph.children_of(label) {
            let reached = match self.numbers.get(child) {
                Some(number) => *number,
                None => self.visit(child, order),
            };
            if reached <= lowest {
                (lowest, is_loop) = (reached, true);
            }
        }
        if lowest == number {
            self.numbers.insert(label.clone(), PLACED);
            // All labels above this one on the stack are in a loop with it, and are placed there.
            while let Some(above) = self.stack.pop().filter(|above| above != label) {
                self.numbers.remove(&above);
            }
            order.push(if is_loop {
                self.component(label)
            } else {
                Component::Label(label.clone())
            });
        }
        lowest
    }

    fn component(&mut self, head: &Label) -> Component {
        let mut body = Vec::new();
        for child in self.graph.children_of(head) {
            if !self.numbers.contains_key(child) {
                self.visit(child, &mut body);
            }
        }
        body.reverse();
        Component::Loop(Loop { head: head.clone(), body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prevail::cfg::graph::cfg_from_adjacency_list;

    fn label(number: i32) -> Label {
        Label::new(number)
    }

    fn single(number: i32) -> Component {
        Component::Label(label(number))
    }

    #[test]
    fn loops_are_components() {
        // The example of the paper: 1 → 2 → 3 → 4 → {5 → 6 → {5, 7}, 7} → {3, 8}, and 2 → 8.
        let edges = [
            (1, vec![2]),
            (2, vec![3, 8]),
            (3, vec![4]),
            (4, vec![5, 7]),
            (5, vec![6]),
            (6, vec![5, 7]),
            (7, vec![3, 8]),
            (8, vec![]),
        ];
        let mut list: Vec<(Label, Vec<Label>)> = edges
            .iter()
            .map(|(from, to)| (label(*from), to.iter().copied().map(label).collect()))
            .collect();
        list.push((Label::entry(), vec![label(1)]));
        let found = order(&cfg_from_adjacency_list(&list));
        let inner = Loop { head: label(5), body: vec![single(6)] };
        let outer =
            Loop { head: label(3), body: vec![single(4), Component::Loop(inner), single(7)] };
        let expected = [
            Component::Label(Label::entry()),
            single(1),
            single(2),
            Component::Loop(outer),
            single(8),
        ];
        assert_eq!(found, expected);
    }
}
