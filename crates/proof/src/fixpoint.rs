//! Invariants at each instruction, found by iteration and then checked.
//!
//! The verifier's own driver narrows for up to two million rounds, and checks assertions while a loop's state is still
//! too wide. This one narrows for a few rounds, and checks assertions only once the states are final. How they were
//! found does not matter for the result: in the end each instruction is applied once more to the state before it, and
//! the result must be contained in the state before each of its successors (`is_inductive`).

use crate::model;
use crate::obstacle::{GaveUp, Obstacle};
use crate::order::{Component, Loop, order};
use crate::words::{self, Missing};

use prevail::cfg::label::Label;
use prevail::crab::ebpf_domain::{
    DomainContext, EbpfDomain, ebpf_domain_check, ebpf_domain_transform,
};
use prevail::crab::var_registry::VariableRegistry;
use prevail::ir::syntax::{Assertion, Instruction, Reg};
use prevail::spec::config::EbpfRuntimeConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Rounds of a loop in which states are joined, before the state is widened.
const JOINED_ROUNDS: u32 = 2;
/// Maximum rounds of a loop: a state of finitely many ranges becomes stable long before.
const MAX_ROUNDS: u32 = 100;
/// Maximum rounds in which a loop's state is narrowed again. The second round uses what the first has made possible in
/// the loop's body; more rounds have never improved a state.
const NARROWING_ROUNDS: u32 = 4;

/// The states of a program.
pub(crate) struct Analysis<'a> {
    context: &'a DomainContext<'a>,
    /// The same context, with a wider range for pointers that are compared.
    checks: DomainContext<'a>,
    registry: VariableRegistry,
    states: BTreeMap<Label, State>,
    /// Whether the program has constants, which the verifier does not distinguish from its variables.
    has_constants: bool,
    deadline: Instant,
}

struct State {
    before: EbpfDomain,
    after: EbpfDomain,
    /// A reason why the instruction could not be applied, which no further round can remove.
    error: Option<Missing>,
}

impl<'a> Analysis<'a> {
    /// Finds the states of the context's program, beginning with the state `entry`. `checks` is the runtime
    /// configuration for assertions (see `model::checks`).
    pub(crate) fn run(
        context: &'a DomainContext<'a>,
        checks: &'a EbpfRuntimeConfig,
        registry: VariableRegistry,
        entry: EbpfDomain,
        has_constants: bool,
        deadline: Instant,
    ) -> Result<Analysis<'a>, GaveUp> {
        let nothing = || EbpfDomain::bottom(context.runtime);
        let states = context.program.labels().map(|label| {
            (label.clone(), State { before: nothing(), after: nothing(), error: None })
        });
        let states = states.collect();
        let checks = DomainContext { runtime: checks, ..*context };
        let mut analysis = Analysis { context, checks, registry, states, has_constants, deadline };
        analysis.state(&Label::entry()).before = entry;
        for component in order(context.program.cfg()) {
            analysis.visit(&component)?;
        }
        Ok(analysis)
    }

    fn state(&mut self, label: &Label) -> &mut State {
        self.states.entry(label.clone()).or_insert_with(|| State {
            before: EbpfDomain::bottom(self.context.runtime),
            after: EbpfDomain::bottom(self.context.runtime),
            error: None,
        })
    }

    fn visit(&mut self, component: &Component) -> Result<(), GaveUp> {
        match component {
            Component::Label(label) => {
                let before = self.arriving(label);
                self.apply(label, before)
            }
            Component::Loop(inner) => self.visit_loop(inner),
        }
    }

    /// The join of the states after all predecessors.
    fn arriving(&mut self, label: &Label) -> EbpfDomain {
        if *label == Label::entry() {
            return self.state(label).before.clone();
        }
        let mut joined = EbpfDomain::bottom(self.context.runtime);
        for parent in self.context.program.cfg().parents_of(label) {
            if let Some(state) = self.states.get(parent) {
                joined.join_assign(&state.after, &mut self.registry);
            }
        }
        joined
    }

    /// Computes the state after an instruction from the state before it.
    fn apply(&mut self, label: &Label, before: EbpfDomain) -> Result<(), GaveUp> {
        if Instant::now() >= self.deadline {
            return Err(GaveUp::Time);
        }
        let instruction = self.context.program.instruction_at(label);
        let mut error =
            self.failing(label, &before, |one| matches!(one, Assertion::TypeConstraint(_)));
        if error.is_none() {
            let mut after = before.clone();
            let registry = &mut self.registry;
            let applied = ebpf_domain_transform(&mut after, instruction, self.context, registry);
            error = applied.err().map(|_| Missing::Other);
            self.state(label).after = after;
        }
        let state = self.state(label);
        state.before = before;
        if error.is_some() {
            state.error = error;
        }
        Ok(())
    }

    /// The first of the selected assertions that may not hold.
    fn failing(
        &mut self,
        label: &Label,
        before: &EbpfDomain,
        which: impl Fn(&Assertion) -> bool,
    ) -> Option<Missing> {
        let mut needed = needed(self.context, label).filter(|one| which(one));
        needed.find_map(|one| {
            let error = ebpf_domain_check(before, one, label, &self.checks, &mut self.registry)?;
            Some(Missing::Assertion(one.clone(), error.message))
        })
    }

    fn visit_loop(&mut self, inner: &Loop) -> Result<(), GaveUp> {
        // States left by the previous round of an outer loop must not be used again.
        for label in inner.labels() {
            self.state(&label).after = EbpfDomain::bottom(self.context.runtime);
        }
        let mut state = self.arriving(&inner.head);
        for round in 1.. {
            let next = self.round(inner, &state)?;
            if next.is_included_in(&state, &mut self.registry) {
                break;
            }
            if round > MAX_ROUNDS {
                return Err(GaveUp::Unstable);
            }
            state = if round < JOINED_ROUNDS {
                state.join(&next, &mut self.registry)
            } else {
                let to_limits = round == JOINED_ROUNDS;
                state.widen(&next, to_limits, self.context, &mut self.registry)
            };
        }
        for round in 1..=NARROWING_ROUNDS {
            let next = self.round(inner, &state)?;
            if state.is_included_in(&next, &mut self.registry) {
                break;
            }
            state = if round == 1 { state.meet(&next) } else { state.narrow(&next) };
        }
        self.round(inner, &state).map(drop)
    }

    /// One round of a loop; returns the state that arrives at its head afterwards.
    fn round(&mut self, inner: &Loop, state: &EbpfDomain) -> Result<EbpfDomain, GaveUp> {
        self.apply(&inner.head, state.clone())?;
        for component in &inner.body {
            self.visit(component)?;
        }
        Ok(self.arriving(&inner.head))
    }

    /// Whether the states hold in every run without a fault: the first state holds when a call begins, and each
    /// instruction leads from the state before it into the states before its successors.
    pub(crate) fn is_inductive(&mut self) -> Result<bool, GaveUp> {
        let program = self.context.program;
        for label in program.labels() {
            if Instant::now() >= self.deadline {
                return Err(GaveUp::Time);
            }
            let Some(state) = self.states.get(label) else { return Ok(false) };
            let mut after = state.before.clone();
            let instruction = program.instruction_at(label);
            if ebpf_domain_transform(&mut after, instruction, self.context, &mut self.registry)
                .is_err()
            {
                return Ok(false);
            }
            for child in program.cfg().children_of(label) {
                let Some(next) = self.states.get(child) else { return Ok(false) };
                if !after.is_included_in(&next.before, &mut self.registry) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The assertions that may not hold, by instruction.
    pub(crate) fn obstacles(&mut self) -> Vec<Obstacle> {
        let labels: Vec<Label> = self.states.keys().cloned().collect();
        let mut found = Vec::new();
        for label in labels {
            let Some(state) = self.states.get(&label) else { continue };
            if state.before.is_bottom() {
                continue;
            }
            let (before, error) = (state.before.clone(), state.error.clone());
            let known = before.to_set(&self.registry);
            let failed = error
                .or_else(|| self.failing(&label, &before, |_| true))
                .or_else(|| self.written_constants(&label, known.value()));
            if let Some(missing) = failed {
                found.push(words::obstacle(&label, &missing, known.value()));
            }
        }
        found
    }

    /// Finds writes that may go to constants: the verifier does not distinguish pointers to constants from pointers to
    /// variables.
    fn written_constants(&self, label: &Label, known: &BTreeSet<String>) -> Option<Missing> {
        if !self.has_constants {
            return None;
        }
        let written: Vec<Reg> = match self.context.program.instruction_at(label) {
            Instruction::Mem(access) if !access.is_load => vec![access.access.basereg],
            Instruction::Atomic(access) => vec![access.access.basereg],
            Instruction::Call(call) => model::written(call).collect(),
            _ => return None,
        };
        // Anything else may be static data: unknown type, several types, or the type of another register.
        let elsewhere = ["ctx", "packet", "stack"];
        let may_be_static = |reg: &Reg| {
            !elsewhere.iter().any(|kind| known.contains(&format!("r{}.type={kind}", reg.v)))
        };
        written.iter().any(may_be_static).then_some(Missing::MayBeConstant)
    }
}

/// The assertions that must hold before an instruction so that it cannot fault. The verifier also requires that no
/// pointer leaks, because pointers would help an attack on Linux. Here pointers are offsets into a private arena, and
/// may be stored and returned.
fn needed<'a>(context: &DomainContext<'a>, label: &Label) -> impl Iterator<Item = &'a Assertion> {
    let returns = matches!(context.program.instruction_at(label), Instruction::Exit(_));
    let assertions = context.program.assertions_at(label).iter();
    assertions.filter(move |one| !returns && !matches!(one, Assertion::ValidStore(_)))
}
