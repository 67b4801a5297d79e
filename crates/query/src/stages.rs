//! The stages, their argument and their answers (`functions/include/bpfof/batch.h`).

use crate::columns::{self, Batches, Pieces};
use crate::conditions::{self, Condition, Operation};
use crate::maps::{Extent, Mapped, Operand, Step};
use crate::measures::{self};
use crate::order_form;
use crate::partial::edges;
use crate::parts::Range;
use crate::plan::OwnStage;
use crate::plan::{Arithmetic, Format, Kind, Plan, Predicate, Reduction, Scalar, Schema};
use crate::split::{COLUMNS_MAX, READ_MAX_BYTES, Split, columns_of_answers, columns_of_predicate};
use crate::wire::Writer;
use std::collections::BTreeSet;
use std::ops;

macro_rules! object {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o"))
    };
}

/// A storage function: its name, and the ELF object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The name of its section after `bpfof/`.
    pub name: &'static str,
    /// The object.
    pub object: &'static [u8],
}

const FIXED: Stage = Stage { name: "query_fixed", object: object!("fixed") };
const COLUMNS: Stage = Stage { name: "query_columns", object: object!("columns") };
const CSV: Stage = Stage { name: "query_csv", object: object!("csv") };
const MAP: Stage = Stage { name: "query_map", object: object!("map") };
const FILTER: Stage = Stage { name: "query_filter", object: object!("filter") };
const FOLD: Stage = Stage { name: "query_fold", object: object!("fold") };
const GROUP: Stage = Stage { name: "query_group", object: object!("group") };
const ROWS: Stage = Stage { name: "query_rows", object: object!("rows") };
const TOP: Stage = Stage { name: "query_top", object: object!("top") };
const HISTOGRAM: Stage = Stage { name: "query_histogram", object: object!("histogram") };

/// All stages, in the order in which they run.
pub const STAGES: [Stage; 10] =
    [FIXED, COLUMNS, CSV, MAP, FILTER, FOLD, GROUP, ROWS, TOP, HISTOGRAM];

const QUERY_BYTES: usize = 96 + COLUMNS_MAX * 16;
/// Stands for a literal in place of a column.
const MAP_LITERAL: u8 = 255;
const CONDITION_BYTES: usize = 24;
const MEASURES_MAX: usize = 16;
const MEASURES_BYTES: usize = 8 + MEASURES_MAX * 16;
const GROUP_PLACES: usize = 1024;
const FOLD_LIMBS: usize = 34;
const GROUP_LIMBS: usize = 4;
const BATCH_BYTES: usize = 32;
const WORKSPACE_BYTES: usize = 65_536;
/// Size of scratch for reductions whose answers have no fixed size.
const SCRATCH_MAX_BYTES: u32 = 16_384;
/// Maximum rows of a block, at the minimum size of a line.
const CSV_ROWS_MAX: usize = 8192;
const FLAG_SKIP: u32 = 1;
/// Flag of a column of rows: answers tell whether the value is present.
const ROWS_MISSING: u16 = 0x8000;

/// Offsets of a measure's words in an entry, in bytes; 0 if absent.
#[derive(Clone, Copy, Debug, Default)]
struct Words {
    column: usize,
    count: u16,
    range: u16,
    sum: u16,
    squares: u16,
}

/// The reduction's parameters, by which its answer is parsed as well.
#[derive(Debug)]
enum Told {
    /// Rows with the columns at these indices in the program.
    Rows {
        limit: u32,
        answered: Vec<usize>,
    },
    Fold {
        words: Vec<Words>,
        entry_bytes: usize,
    },
    Group {
        keys: Vec<usize>,
        words: Vec<Words>,
        entry_bytes: usize,
    },
    Top {
        by: usize,
        descending: bool,
        count: u32,
    },
    Histogram {
        of: usize,
        edges: Vec<u64>,
    },
    /// The user's own reduction uses these columns, and answers these columns of the schema.
    Own {
        columns: Vec<usize>,
        answered: ops::Range<usize>,
    },
}

impl Told {
    const fn stage(&self) -> Stage {
        match self {
            // An own reduction replaces that of rows.
            Self::Rows { .. } | Self::Own { .. } => ROWS,
            Self::Fold { .. } => FOLD,
            Self::Group { .. } => GROUP,
            Self::Top { .. } => TOP,
            Self::Histogram { .. } => HISTOGRAM,
        }
    }
}

/// The functions of a chain by their numbers; 0 if absent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) map: u32,
    pub(crate) filter: u32,
    pub(crate) own_filter: u32,
    pub(crate) reduce: u32,
}

/// A plan, or the part of it that stages do, in the form for chains.
#[derive(Debug)]
pub(crate) struct Program {
    /// Includes the columns that the map makes.
    schema: Schema,
    /// Indices in the schema, ascending. The first `taken` columns come from the source, the others are made by steps.
    columns: Vec<usize>,
    taken: usize,
    steps: Vec<Step>,
    kinds: Vec<Kind>,
    nullable: Vec<bool>,
    conditions: Vec<Condition>,
    told: Told,
    pub(crate) source: Stage,
    pub(crate) map: Option<Stage>,
    pub(crate) filter: Option<Stage>,
    pub(crate) reduce: Stage,
    /// After the filter.
    pub(crate) own_filter: Option<OwnStage>,
    /// In place of `reduce`.
    pub(crate) own_reduction: Option<OwnStage>,
    /// The pieces that are read of Arrow columns.
    pieces: Pieces,
    rows_max: usize,
    masks: usize,
}

impl Program {
    /// The stages' part of a plan.
    pub(crate) fn new(plan: &Plan, split: &Split) -> Result<Self, String> {
        let columns = split.columns.clone();
        if let Some(own) = &plan.own.reduction {
            let answered = plan.file_columns()..plan.schema.columns.len();
            let told = Told::Own { columns: own.stage.columns.clone(), answered };
            let program = Self::with(Mapped::of_filter(plan, &split.pushed), columns, told)?;
            return Ok(Self { own_reduction: Some(own.stage.clone()), ..program });
        }
        let limit = match &plan.reduction {
            Reduction::Rows { limit, .. } => Some(limit.unwrap_or(u64::MAX)),
            _ => None,
        };
        if limit.is_some() || !split.reduces {
            // Columns that only the pushed filter uses are not answered.
            let limit = limit.filter(|_| split.reduces).unwrap_or(u64::MAX);
            let limit = limit.clamp(1, u64::from(u32::MAX)) as u32;
            return Self::rows(plan, (&split.pushed, &split.rest), columns, limit);
        }
        let extent = match plan.reduction {
            Reduction::Groups { .. } | Reduction::Histogram { .. } => Extent::All,
            _ => Extent::Fitting,
        };
        let mapped = Mapped::new(plan, &split.pushed, extent);
        let told = reduction(&mapped.plan)?;
        Self::with(mapped, columns, told)
    }

    /// A program that answers rows that meet `filter`: of these columns, ascending, those that the reduction and `rest`
    /// use.
    pub(crate) fn rows(
        plan: &Plan,
        (filter, rest): (&Predicate, &Predicate),
        columns: Vec<usize>,
        limit: u32,
    ) -> Result<Self, String> {
        let told = rows(plan, &columns, rest, limit);
        Self::with(Mapped::of_filter(plan, filter), columns, told)
    }

    /// `columns` are the columns of the schema that the source makes.
    fn with(mapped: Mapped, mut columns: Vec<usize>, told: Told) -> Result<Self, String> {
        let first = mapped.first();
        let Mapped { plan, steps, .. } = mapped;
        let (taken, has_steps) = (columns.len(), !steps.is_empty());
        columns.extend(first..first + steps.len());
        if columns.len() > COLUMNS_MAX {
            return Err(format!("stages look at {COLUMNS_MAX} columns at most"));
        }
        let filter = &plan.filter;
        let mut conditions = Vec::new();
        let conjuncts = match filter {
            Predicate::And(all) => all.as_slice(),
            other => std::slice::from_ref(other),
        };
        for conjunct in conjuncts {
            conditions.append(&mut conditions::conjunct(conjunct, &plan.schema)?);
        }
        if !conditions.iter().all(|condition| condition.is_of(&columns)) {
            return Err("a condition on a column that the stages do not read".to_owned());
        }
        let is_csv = matches!(plan.format, Format::Csv { .. });
        let of = |index: &usize| &plan.schema.columns[*index];
        let kinds: Vec<_> = columns.iter().map(|index| of(index).kind).collect();
        let nullable = |index: &usize| plan.format.may_be_missing(of(index));
        let nullable: Vec<_> = columns.iter().map(nullable).collect();
        let mut masks = conditions::masks(&conditions);
        let reduce = told.stage();
        if reduce == GROUP {
            // It stores the place of each row's entry in the room for masks.
            masks = masks.max(2);
        }
        let row_bytes: usize =
            kinds.iter().map(|kind| if *kind == Kind::Utf8 { 4 } else { 8 }).sum();
        let row_bytes = row_bytes + nullable.iter().filter(|nullable| **nullable).count();
        let row_bytes = row_bytes + 4 + if is_csv { 2 } else { 0 } + masks;
        let most = match plan.format {
            Format::Fixed { record_bytes, .. } => {
                (READ_MAX_BYTES / record_bytes).next_multiple_of(8) as usize
            }
            Format::Csv { .. } => CSV_ROWS_MAX,
            Format::Columns { .. } => columns::ROWS_MAX,
        };
        let (source, pieces) = match &plan.format {
            Format::Fixed { .. } => (FIXED, Pieces::default()),
            Format::Csv { .. } => (CSV, Pieces::default()),
            Format::Columns { columns: known, .. } => {
                (COLUMNS, Pieces::new(known, &columns[..taken], &nullable[..taken]))
            }
        };
        let rows_max = ((WORKSPACE_BYTES - BATCH_BYTES) / row_bytes / 8 * 8).min(most);
        Ok(Self {
            schema: plan.schema,
            columns,
            taken,
            steps,
            kinds,
            nullable,
            map: has_steps.then_some(MAP),
            filter: (!conditions.is_empty()).then_some(FILTER),
            conditions,
            told,
            source,
            reduce,
            own_filter: plan.own.filter,
            own_reduction: None,
            pieces,
            rows_max,
            masks,
        })
    }

    /// The maximum useful size of a read; for Arrow files in rows.
    pub(crate) fn block_max(&self, format: &Format) -> u32 {
        match format {
            Format::Fixed { record_bytes, .. } => {
                let records = (READ_MAX_BYTES / record_bytes).min(self.rows_max as u32);
                records * record_bytes
            }
            Format::Csv { .. } => READ_MAX_BYTES,
            Format::Columns { .. } => self.pieces.rows_at_a_time(self.rows_max),
        }
    }

    /// Number of rows of Arrow columns that take this many bytes in the buffers that are read together.
    pub(crate) fn rows_of(&self, bytes: u32) -> u32 {
        self.pieces.rows_of(bytes.into()).min(self.rows_max as u64) as u32
    }

    /// The argument of a chain, and the size of scratch.
    pub(crate) fn argument(
        &self,
        plan: &Plan,
        (range, batches): (&Range, &Batches),
        block: u32,
        numbers: Numbers,
    ) -> (Vec<u8>, u32) {
        let mut nullable = match plan.format {
            Format::Columns { .. } => self.pieces.missing(batches, range, self.taken),
            _ => self.nullable[..self.taken].to_vec(),
        };
        for step in &self.steps {
            let is_nullable = |operand: &Operand| match operand {
                Operand::Column(column) => nullable[self.place(*column)],
                _ => false,
            };
            nullable.push(step.operands.iter().any(is_nullable));
        }
        let mut to = Writer::default();
        to.u64(range.end).u64(range.file_end).u64(0).u64(0);
        to.u32(block).u32(if range.skips { FLAG_SKIP } else { 0 });
        let Numbers { map, filter, own_filter, reduce } = numbers;
        // The first of these filters, and the second.
        let (first, second) = if filter == 0 { (own_filter, 0) } else { (filter, own_filter) };
        to.u32(first).u32(reduce);
        let head = to.len();
        to.skip(QUERY_BYTES - head);
        let conditions_at = to.len();
        let constants_at = conditions_at + self.conditions.len() * CONDITION_BYTES;
        let mut constants = Writer::default();
        for condition in &self.conditions {
            self.write_condition(condition, constants_at, &mut constants, &mut to);
        }
        to.bytes(constants.as_slice()).align();
        let nulls_at = to.len();
        if let Format::Csv { nulls, .. } = &plan.format {
            nulls.iter().for_each(|null| to.padded(null.as_bytes(), 8));
        }
        let source_at = to.align().len();
        if self.source == COLUMNS {
            self.pieces.write(batches, range, block, &nullable, &mut to);
        }
        let map_at = to.len();
        self.steps.iter().for_each(|step| self.write_step(step, &mut to));
        let own_filter_at = to.len();
        if let Some(own) = &self.own_filter {
            self.write_own(&own.columns, &mut to);
            to.align();
        }
        let reduction_at = to.len();
        self.write_reduction(&mut to);
        to.align();
        if matches!(self.told, Told::Group { .. }) {
            to.skip(GROUP_PLACES * 2);
        }
        let state_at = to.len();
        let mut header = Writer::default();
        header.u16(conditions_at as u16).u16(self.conditions.len() as u16);
        header.u16(reduction_at as u16).u16(state_at as u16);
        let own = (second, own_filter_at);
        self.write_layout(plan, (nulls_at, source_at, map_at, map), own, &nullable, &mut header);
        to.put(head, header.as_slice());
        let scratch = self.scratch_bytes(state_at);
        let mut argument = to.into_vec();
        if matches!(self.told, Told::Group { .. }) {
            // Scratch is zero there anyway.
            argument.truncate(state_at - GROUP_PLACES * 2);
        }
        (argument, scratch)
    }

    /// Size of scratch of a chain whose state begins at this offset.
    fn scratch_bytes(&self, state_at: usize) -> u32 {
        let bytes = match &self.told {
            Told::Fold { entry_bytes, .. } => (state_at + entry_bytes) as u32,
            Told::Histogram { edges, .. } => (state_at + edges.len() * 8) as u32,
            _ => SCRATCH_MAX_BYTES,
        };
        bytes.max(QUERY_BYTES as u32)
    }

    /// Index of a column among those that stages use.
    fn place(&self, column: usize) -> usize {
        self.columns.iter().position(|known| *known == column).unwrap_or(0)
    }

    fn write_step(&self, step: &Step, to: &mut Writer) {
        let operation = match step.operation {
            Arithmetic::Add => 0,
            Arithmetic::Subtract => 1,
            Arithmetic::Multiply => 2,
            Arithmetic::Divide => 3,
        };
        to.u8(operation);
        let mut literal = (0, Kind::I64);
        for operand in step.operands {
            literal = operand.literal().unwrap_or(literal);
            to.u8(match operand {
                Operand::Column(column) => self.place(column) as u8,
                _ => MAP_LITERAL,
            });
        }
        let (order, kind) = literal;
        to.u8(if kind.is_float() { 2 } else { 1 }).u32(0).u64(order);
    }

    fn write_condition(
        &self,
        condition: &Condition,
        constants_at: usize,
        constants: &mut Writer,
        to: &mut Writer,
    ) {
        let at = constants_at + constants.len();
        let count = match &condition.operation {
            Operation::In(set) => {
                set.iter().for_each(|number| {
                    constants.u64(*number);
                });
                set.len()
            }
            Operation::Text(text) | Operation::Prefix(text) => {
                constants.bytes(text.as_bytes());
                text.len()
            }
            _ => 0,
        };
        constants.align();
        to.u64(condition.low).u64(condition.high);
        to.u8(condition.operation.code()).u8(self.place(condition.column) as u8);
        to.u8(condition.outcome).u8(0).u16(at as u16).u16(count as u16);
    }

    fn write_reduction(&self, to: &mut Writer) {
        match &self.told {
            Told::Rows { limit, answered } => {
                to.u32(*limit).u16(answered.len() as u16);
                answered.iter().for_each(|place| {
                    let missing = if self.nullable[*place] { ROWS_MISSING } else { 0 };
                    to.u16(*place as u16 | missing);
                });
            }
            Told::Fold { words, entry_bytes } => self.write_measures(words, *entry_bytes, to),
            Told::Group { keys, words, entry_bytes } => {
                self.write_measures(words, *entry_bytes, to);
                to.u32(keys.len() as u32).u32((GROUP_PLACES * 2 / 3) as u32);
                keys.iter().for_each(|key| {
                    to.u16(self.place(*key) as u16);
                });
            }
            Told::Own { columns, .. } => self.write_own(columns, to),
            Told::Top { by, descending, count } => {
                to.u32(*count).u16(self.place(*by) as u16).u16(u16::from(*descending));
            }
            Told::Histogram { of, edges } => {
                to.u32(self.place(*of) as u32).u32(edges.len() as u32 - 1);
                edges.iter().for_each(|edge| {
                    to.u64(*edge);
                });
            }
        }
    }

    fn write_own(&self, columns: &[usize], to: &mut Writer) {
        to.u16(columns.len() as u16);
        columns.iter().for_each(|column| {
            to.u16(self.place(*column) as u16);
        });
    }

    fn write_measures(&self, words: &[Words], entry_bytes: usize, to: &mut Writer) {
        let start = to.len();
        to.u32(words.len() as u32).u32(entry_bytes as u32);
        for words in words {
            to.u16(self.place(words.column) as u16).u16(words.count).u16(words.range);
            to.u16(words.sum).u16(words.squares).u16(0).u16(0).u16(0);
        }
        to.skip(MEASURES_BYTES - (to.len() - start));
    }

    /// Writes the part of the query from the offsets in the workspace on: the layout of the workspace, and the columns.
    fn write_layout(
        &self,
        plan: &Plan,
        (nulls_at, source_at, map_at, map): (usize, usize, usize, u32),
        (own_filter, own_filter_at): (u32, usize),
        missing: &[bool],
        to: &mut Writer,
    ) {
        let mut next = BATCH_BYTES;
        let mut place = |bytes: usize| {
            let at = next;
            next += bytes * self.rows_max;
            at as u16
        };
        let is_csv = self.source == CSV;
        to.u16(place(2)).u16(place(2));
        to.u16(place(if is_csv { 2 } else { 0 })).u16(place(self.masks));
        to.u16(self.rows_max as u16).u16(self.taken as u16);
        match &plan.format {
            Format::Fixed { record_bytes, .. } => {
                to.u16(*record_bytes as u16).u8(0).u8(0).u16(0);
            }
            Format::Csv { delimiter, nulls, .. } => {
                to.u16(0).u8(*delimiter).u8(nulls.len() as u8).u16(nulls_at as u16);
            }
            // Rows are identified by numbers.
            Format::Columns { .. } => {
                to.u16(1).u8(0).u8(0).u16(0);
            }
        }
        to.u16(source_at as u16).u16(map_at as u16).u16(self.steps.len() as u16).u32(map);
        let fields = match plan.format {
            Format::Csv { .. } => plan.file_columns() as u16,
            Format::Fixed { .. } | Format::Columns { .. } => 0,
        };
        to.u32(own_filter).u16(own_filter_at as u16).u16(fields).u16(0).u16(0);
        for (at, (index, kind)) in self.columns.iter().zip(&self.kinds).enumerate() {
            let room = usize::from(self.nullable[at]);
            let (offset, width) = match &plan.format {
                _ if at >= self.taken => (0, 8),
                Format::Fixed { fields, .. } => {
                    (fields[*index].offset_bytes, fields[*index].width_bytes)
                }
                Format::Csv { .. } => (*index as u32, kind.width_bytes().unwrap_or(0)),
                Format::Columns { columns, .. } => (0, columns::width(&columns[*index])),
            };
            let code = match kind {
                Kind::Utf8 => 3,
                kind if kind.is_float() => 2,
                kind => u8::from(order_form::is_signed(*kind)),
            };
            to.u32(offset).u16(width as u16).u8(code).u8(u8::from(missing[at]));
            to.u16(place(if *kind == Kind::Utf8 { 4 } else { 8 }));
            to.u16(place(room)).u32(0);
        }
    }
}

fn column(of: &Scalar) -> Result<usize, String> {
    match of {
        Scalar::Column(column) => Ok(*column),
        _ => Err("stages look at columns only".to_owned()),
    }
}

/// Rows with the columns that a plan answers, and those that `rest` uses.
fn rows(plan: &Plan, columns: &[usize], rest: &Predicate, limit: u32) -> Told {
    let mut needed = BTreeSet::new();
    columns_of_answers(plan, &mut needed);
    columns_of_predicate(rest, &mut needed);
    let places = columns.iter().enumerate().filter(|(_, column)| needed.contains(column));
    Told::Rows { limit, answered: places.map(|(place, _)| place).collect() }
}

/// The reduction of a plan for the stages.
fn reduction(plan: &Plan) -> Result<Told, String> {
    Ok(match &plan.reduction {
        Reduction::Rows { .. } => return Err("rows are not reduced".to_owned()),
        Reduction::Groups { keys, aggregates } => {
            let keys = keys.iter().map(column).collect::<Result<Vec<_>, _>>()?;
            // The head of an entry: an unused word of a fold; of a group the head word, keys and rows.
            let head = if keys.is_empty() { 8 } else { 16 + 8 * keys.len() };
            let limbs = if keys.is_empty() { FOLD_LIMBS } else { GROUP_LIMBS };
            let (wanted, _) = measures::wanted(aggregates, &plan.schema);
            if wanted.len() > MEASURES_MAX {
                return Err(format!("stages aggregate {MEASURES_MAX} columns at most"));
            }
            let mut next = head;
            let mut words = Vec::new();
            for wanted in &wanted {
                let index = column(&wanted.of)?;
                let of = &plan.schema.columns[index];
                let mut place = |is_wanted: bool, words: usize| {
                    let at = next;
                    next += if is_wanted { 8 * words } else { 0 };
                    if is_wanted { at as u16 } else { 0 }
                };
                let sum_words = if of.kind.is_float() { 1 + limbs } else { 2 };
                words.push(Words {
                    column: index,
                    count: place(plan.format.may_be_missing(of), 1),
                    range: place(wanted.range, 2),
                    sum: place(wanted.sum || wanted.variance, sum_words),
                    squares: place(wanted.variance, 2),
                });
            }
            match keys.is_empty() {
                true => Told::Fold { words, entry_bytes: next },
                false => Told::Group { keys, words, entry_bytes: next },
            }
        }
        Reduction::Top { by, descending, count, .. } => {
            Told::Top { by: column(by)?, descending: *descending, count: *count }
        }
        Reduction::Histogram { of, low, high, bins } => {
            let of = column(of)?;
            let kind = plan.schema.columns[of].kind;
            Told::Histogram { of, edges: order_edges(kind, &edges(*low, *high, *bins)) }
        }
    })
}

/// The first value of each interval, and the last value of the last interval, in order form.
fn order_edges(kind: Kind, edges: &[f64]) -> Vec<u64> {
    let last = edges.len() - 1;
    let order = |(index, edge): (usize, &f64)| {
        if !kind.is_float() {
            let whole = if index == last { edge.floor() } else { edge.ceil() };
            return order_form::of_int(kind, whole as i128);
        }
        let zero = if index == last { 0.0 } else { -0.0 };
        order_form::of_float(if *edge == 0.0 { zero } else { *edge })
    };
    edges.iter().enumerate().map(order).collect()
}

mod answers;
mod long_row;

pub(crate) use answers::{Answer, BadRow, RawText, Status};

#[cfg(test)]
mod tests;
