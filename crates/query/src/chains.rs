//! Chains over the ranges of a file, many at a time.

use crate::blocks::BlockSize;
use crate::columns::Batches;
use crate::error::RunError;
use crate::functions::Stages;
use crate::infer::OPEN_QUOTE;
use crate::parts::Range;
use crate::plan::{Format, OwnStages, Plan};
use crate::settings::{Settings, Stats};
use crate::split::READ_MAX_BYTES;
use crate::stages::{Answer, BadRow, Numbers, Program, Stage, Status};
use bpfof_host::files::{
    Executor, FirstRead, Policy, PushdownFile, PushdownReader, ReadError, ReadInfo, ReadPushdown,
    StorageFunction,
};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How often to report progress.
const TELL_AGAIN: Duration = Duration::from_millis(100);
/// Initial block of text: a byte of text costs more of a call's budget than a byte of records.
const CSV_BLOCK_BYTES: u32 = 16 << 10;
/// Smallest block of text. Lines may be longer: the stage reads more at a time if necessary.
const CSV_BLOCK_MIN_BYTES: u32 = 256;
/// Maximum number of chains at a time.
const CHAINS_MAX: usize = 256;
/// Message for a line that exceeds the budget even with the smallest block.
const DEAR_LINE: &str = "a line at or after this byte exceeds the instruction budget of a call, for \
     instance by more than some 2,500 fields in quotes, or 30 numbers of more than 19 digits: leave quotes out, or ask \
     for fewer columns";
/// Message for a row that does not fit into scratch beside the argument. A row of text is read here instead, unless the
/// user's own stage answers.
const LONG_ROW: &str = "the row is too long for an answer, which has some 10 KiB for a row; do not select long \
     columns (they may be used in WHERE)";

/// A program with its functions.
#[derive(Debug)]
pub(crate) struct Loaded {
    program: Program,
    numbers: Numbers,
    block: BlockSize,
}

impl Loaded {
    /// Size of a read in bytes; for column files, rows that are read together.
    pub(crate) const fn block(&self) -> u32 {
        self.block.now()
    }

    /// The argument of a chain over a range, and the size of scratch.
    pub(crate) fn argument(&self, plan: &Plan, range: (&Range, &Batches)) -> (Vec<u8>, u32) {
        self.program.argument(plan, range, self.block(), self.numbers)
    }
}

/// How to continue with a range after an answer.
pub(crate) enum Next {
    /// The range has ended, or its next chain begins where the answer says.
    AsAnswered,
    /// The rest of the range is left over.
    Leave,
    /// No more rows of any range are wanted.
    Enough,
}

/// A file, and for column files the places of its columns.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: PushdownFile,
    pub(crate) batches: Batches,
}

/// Called with each answer, the index of its range, and the rest of the range that the chain was for.
type OnAnswer<'a> =
    &'a mut dyn FnMut(&Program, usize, &Range, &Answer<'_>) -> Result<Next, RunError>;

/// Runs chains that begin with one source stage.
#[derive(Debug)]
pub(crate) struct Chains {
    reader: PushdownReader,
    source: StorageFunction,
    settings: Settings,
    stats: Stats,
}

/// A run over some ranges.
struct Run<'a> {
    loaded: &'a mut Loaded,
    plan: &'a Plan,
    opened: &'a Opened,
    /// With the index of each range; in flight also with the chain's block size.
    waiting: VecDeque<(usize, Range)>,
    in_flight: HashMap<u64, (usize, Range, u32)>,
    left: Vec<Range>,
    done_bytes: u64,
    /// Number of chains at a time, at present.
    window: usize,
    next_tag: u64,
    /// Whether only the first rows are wanted.
    is_limited: bool,
    /// Whether no more rows are wanted.
    is_over: bool,
    /// The index of the range that failed, and why. The rows of later ranges are no longer wanted.
    failure: Option<(usize, RunError)>,
}

impl Chains {
    pub(crate) fn new(
        stages: &Stages<'_>,
        source: Stage,
        settings: Settings,
    ) -> Result<Self, RunError> {
        let policy = Policy { retries: 3, fall_back: settings.falls_back, ..Policy::default() };
        let source = stages.function(source)?;
        let reader = PushdownReader::new(stages.maps(), policy)?;
        Ok(Self { reader, source, settings, stats: Stats::default() })
    }

    pub(crate) fn stats(&self) -> Stats {
        let (sent_bytes, received_bytes) = self.reader.traffic();
        Stats { sent_bytes, received_bytes, ..self.stats }
    }

    /// Loads those stages of a program that are not loaded yet.
    pub(crate) fn load(
        &mut self,
        stages: &Stages<'_>,
        plan: &Plan,
        program: Program,
    ) -> Result<Loaded, RunError> {
        let number = |stage| stages.function(stage).map(|function| function.number());
        let own = |stage: &_| stages.own_function(stage).map(|function| function.number());
        let numbers = Numbers {
            map: program.map.map_or(Ok(0), number)?,
            filter: program.filter.map_or(Ok(0), number)?,
            own_filter: program.own_filter.as_ref().map_or(Ok(0), own)?,
            reduce: match &program.own_reduction {
                Some(reduction) => own(reduction)?,
                None => number(program.reduce)?,
            },
        };
        let most = self.settings.block_max_bytes.unwrap_or(u32::MAX);
        let block = match &plan.format {
            Format::Fixed { record_bytes, .. } => {
                let block = program.block_max(&plan.format).min(most);
                let block = (block / record_bytes).max(1) * record_bytes;
                BlockSize::new(*record_bytes, block, *record_bytes)
            }
            Format::Csv { .. } => {
                BlockSize::new(CSV_BLOCK_MIN_BYTES, CSV_BLOCK_BYTES.min(most).max(1), 1)
            }
            Format::Columns { .. } => {
                let rows = program.block_max(&plan.format).min(program.rows_of(most));
                BlockSize::new(1, rows, 1)
            }
        };
        Ok(Loaded { program, numbers, block })
    }

    /// Runs chains until all ranges have ended. Returns the rests that are left over. If only the first rows are wanted
    /// (`is_limited`), the failure of a range is an error unless there are enough rows before it.
    pub(crate) fn run(
        &mut self,
        (plan, loaded): (&Plan, &mut Loaded),
        (opened, ranges, is_limited): (&Opened, Vec<Range>, bool),
        on_answer: OnAnswer<'_>,
        on_progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Vec<Range>, RunError> {
        let most = self.settings.chains.clamp(1, CHAINS_MAX);
        let mut run = Run {
            loaded,
            plan,
            opened,
            waiting: ranges.into_iter().enumerate().collect(),
            in_flight: HashMap::new(),
            left: Vec::new(),
            done_bytes: 0,
            window: if is_limited { 1 } else { most },
            next_tag: 0,
            is_limited,
            is_over: false,
            failure: None,
        };
        loop {
            self.start(&mut run);
            if run.in_flight.is_empty() {
                break;
            }
            let Self { reader, stats, .. } = self;
            reader.wait(TELL_AGAIN, &mut |completion| {
                run.ended(completion.tag, completion.result, stats, on_answer);
                run.window = (run.window * 2).min(most);
            });
            if !run.is_over && !on_progress(run.done_bytes) {
                run.is_over = true;
                run.failure = Some((0, RunError::Stopped));
            }
        }
        match run.failure {
            None => Ok(run.left),
            Some((_, error)) => Err(error),
        }
    }

    /// Starts chains until the window is full.
    fn start(&mut self, run: &mut Run<'_>) {
        while !run.is_over && run.in_flight.len() < run.window {
            let Some((index, range)) = run.waiting.pop_front() else { break };
            if !run.is_wanted(index) {
                continue;
            }
            let block = run.loaded.block();
            let (scratch, scratch_size_bytes) =
                run.loaded.argument(run.plan, (&range, &run.opened.batches));
            let size = |end: u64| end.saturating_sub(range.start).min(u64::from(block));
            let (offset_bytes, size) = match run.plan.format {
                Format::Fixed { .. } => (range.start, size(range.end)),
                Format::Csv { .. } => (range.start, size(range.file_end)),
                // The source stage then requests the reads that it needs.
                Format::Columns { .. } => (run.opened.batches.first_byte(&range), 1),
            };
            let call = ReadPushdown {
                files: std::slice::from_ref(&run.opened.file),
                first_read: FirstRead { file: 0, offset_bytes, size_bytes: size as u32 },
                function: &self.source,
                scratch: &scratch,
                scratch_size_bytes,
                answer_max_bytes: scratch_size_bytes,
            };
            let tag = run.next_tag;
            run.next_tag += 1;
            match self.reader.submit(tag, &call) {
                Ok(()) => {
                    run.in_flight.insert(tag, (index, range, block));
                }
                Err(error) => {
                    let error = run.failed(&range, error);
                    run.fail(index, error);
                }
            }
        }
    }
}

impl Run<'_> {
    /// Whether the rows of the range with this index are wanted.
    fn is_wanted(&self, index: usize) -> bool {
        let is_before = |(failed, _): &(usize, RunError)| index < *failed;
        !self.is_over && self.failure.as_ref().is_none_or(is_before)
    }

    /// Records the failure of a range. Of several failures the first one is reported: in time, or, if only the first
    /// rows are wanted, in the order of the rows.
    fn fail(&mut self, index: usize, error: RunError) {
        if self.is_wanted(index) {
            self.failure = Some((index, error));
            self.is_over = !self.is_limited;
        }
    }

    fn failed(&self, range: &Range, source: ReadError) -> RunError {
        let path = self.opened.file.path().to_owned();
        let offset_bytes = self.offset(range.start);
        // Own stages may exceed the budget for any reason.
        let is_shipped = self.plan.own == OwnStages::default();
        let is_text = matches!(self.plan.format, Format::Csv { .. });
        if is_out_of_budget(&source) && is_shipped && is_text {
            return self.data(offset_bytes, DEAR_LINE);
        }
        RunError::Chain { path, offset_bytes, source }
    }

    /// Handles the end of a chain.
    fn ended(
        &mut self,
        tag: u64,
        result: Result<(&[u8], ReadInfo), ReadError>,
        stats: &mut Stats,
        on_answer: OnAnswer<'_>,
    ) {
        let Some(chain) = self.in_flight.remove(&tag) else { return };
        if let Err(error) = self.take_result(chain, result, stats, on_answer) {
            self.fail(chain.0, error);
        }
    }

    /// Processes the result of a chain that was for a range, with blocks of this size.
    fn take_result(
        &mut self,
        (index, range, block): (usize, Range, u32),
        result: Result<(&[u8], ReadInfo), ReadError>,
        stats: &mut Stats,
        on_answer: OnAnswer<'_>,
    ) -> Result<(), RunError> {
        let (bytes, info) = match result {
            Ok(ended) => ended,
            Err(_) if !self.is_wanted(index) => return Ok(()),
            Err(error) if is_out_of_budget(&error) && self.loaded.block.halve(block) => {
                stats.again += 1;
                self.waiting.push_front((index, range));
                return Ok(());
            }
            Err(error) => return Err(self.failed(&range, error)),
        };
        self.loaded.block.ended(block);
        stats.chains += 1;
        stats.chains_at_target += u64::from(info.executor == Executor::Target);
        stats.hops += u64::from(info.hops);
        stats.again += u64::from(info.stale);
        if !self.is_wanted(index) {
            return Ok(());
        }
        let answer = self.loaded.program.answer(bytes)?;
        if let Status::Bad(what, column) = answer.status {
            return Err(self.bad_row(&answer, what, column));
        }
        if !answer.is_of(&range) {
            return Err(RunError::Damaged);
        }
        self.take((index, range), &answer, stats, on_answer)
    }

    /// Processes an answer for a range, and continues the range.
    fn take(
        &mut self,
        (index, range): (usize, Range),
        answer: &Answer<'_>,
        stats: &mut Stats,
        on_answer: OnAnswer<'_>,
    ) -> Result<(), RunError> {
        stats.rows += answer.rows;
        stats.passed += answer.passed;
        let done = answer.next.min(range.end).saturating_sub(range.start);
        match self.plan.format {
            Format::Columns { .. } => {
                stats.scanned_bytes += self.opened.batches.scanned_bytes(done);
                self.done_bytes += self.opened.batches.done_bytes(done);
            }
            _ => {
                stats.scanned_bytes += done;
                self.done_bytes += done;
            }
        }
        let next = on_answer(&self.loaded.program, index, &range, answer);
        let next = next.map_err(|error| match error {
            RunError::Overflow(source) => {
                let path = self.opened.file.path().to_owned();
                RunError::OverflowIn { path, offset_bytes: self.offset(range.start), source }
            }
            other => other,
        })?;
        let has_more = answer.status == Status::More && answer.next < range.end;
        let rest = Range { start: answer.next, skips: false, ..range };
        match next {
            // These rows come before the range that has failed, if one has.
            Next::Enough => (self.is_over, self.failure) = (true, None),
            Next::Leave if has_more => self.left.push(rest),
            // A further chain would not make progress either.
            _ if has_more && answer.next == range.start => {
                return self.take_long_row((index, range), stats, on_answer);
            }
            _ if has_more => self.waiting.push_front((index, rest)),
            _ => {}
        }
        Ok(())
    }

    /// Processes the first row of a range, which does not fit into an answer.
    fn take_long_row(
        &mut self,
        (index, range): (usize, Range),
        stats: &mut Stats,
        on_answer: OnAnswer<'_>,
    ) -> Result<(), RunError> {
        let failed = |why: &str| self.data(self.offset(range.start), why);
        let line = match self.plan.format {
            Format::Csv { .. } => self.read_line(&range),
            _ => return Err(failed(LONG_ROW)),
        };
        let line = line.map_err(|error| failed(&format!("the row cannot be read: {error}")))?;
        let body = self.loaded.program.body_of(&self.plan.format, &line);
        let body = body.ok_or_else(|| failed(LONG_ROW))?;
        let answer = Answer::of_row(range.start + line.len() as u64, &body);
        self.take((index, range), &answer, stats, on_answer)
    }

    /// The first line of a range, including its end.
    fn read_line(&self, range: &Range) -> io::Result<Vec<u8>> {
        let left = range.file_end.saturating_sub(range.start);
        let mut line = vec![0; left.min(READ_MAX_BYTES.into()) as usize];
        self.opened.file.file()?.read_exact_at(&mut line, range.start)?;
        match line.iter().position(|byte| *byte == b'\n') {
            Some(end) => line.truncate(end + 1),
            None if left > line.len() as u64 => {
                return Err(io::Error::other("the file has become longer: run the query again"));
            }
            None => {}
        }
        Ok(line)
    }

    /// The approximate file offset of a row.
    fn offset(&self, row: u64) -> u64 {
        match self.plan.format {
            Format::Columns { .. } => self.opened.batches.offset_of(row),
            _ => row,
        }
    }

    fn data(&self, offset_bytes: u64, what: &str) -> RunError {
        let path = self.opened.file.path().to_owned();
        RunError::Data { path, offset_bytes, what: what.to_owned() }
    }

    fn bad_row(&self, answer: &Answer<'_>, what: BadRow, column: Option<usize>) -> RunError {
        let column = column.and_then(|index| self.plan.schema.columns.get(index));
        let name = column.map_or("", |column| &column.name);
        let kind = column.map_or_else(String::new, |column| column.kind.to_string());
        let what = match what {
            BadRow::Number => format!(
                "column {name} is not a valid {kind}: give the column another type, utf8 for example, or name \
                 the texts that mean a missing number"
            ),
            BadRow::Short => format!("the row has no column {name}"),
            BadRow::Long if matches!(self.plan.format, Format::Columns { .. }) => {
                "the texts of a row are too long to be read at once: the limit is 48 KiB for one column, and \
                 less for several"
                    .to_owned()
            }
            BadRow::Fields(found) => format!(
                "the row has {found} fields instead of {}: a value with a delimiter in it needs quotes",
                self.plan.file_columns()
            ),
            BadRow::Text => {
                format!("the offsets of column {name} point outside its texts: the file is damaged")
            }
            BadRow::Long => format!(
                "a row of more than {READ_MAX_BYTES} bytes: is it text with this delimiter?"
            ),
            BadRow::Quotes => OPEN_QUOTE.to_owned(),
        };
        self.data(self.offset(answer.next), &what)
    }
}

fn is_out_of_budget(error: &ReadError) -> bool {
    let status = bpfof_host::Status::INSTRUCTION_BUDGET_EXHAUSTED;
    matches!(error, ReadError::Command(error) if error.status.same_code(status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Column, Field, Kind, Predicate, Reduction, Scalar, Schema};
    use crate::split::split;
    use bpfof_host::files::FileMaps;

    /// Two ranges of a record each, for which chains with the tags 0 and 1 are in flight.
    fn with_two_chains(is_limited: bool, test: impl FnOnce(&mut Run<'_>)) {
        let column = Column { name: "n".to_owned(), kind: Kind::U64, nullable: false };
        let fields = vec![Field { offset_bytes: 0, width_bytes: 8 }];
        let plan = Plan {
            schema: Schema { columns: vec![column] },
            format: Format::Fixed { header_bytes: 0, record_bytes: 8, fields },
            filter: Predicate::Constant(true),
            reduction: Reduction::Rows { columns: vec![Scalar::Column(0)], limit: Some(1) },
            own: OwnStages::default(),
        };
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), [0; 16]).expect("room");
        let maps = FileMaps::local();
        let stages = Stages::new(&maps);
        let program = Program::new(&plan, &split(&plan).expect("a plan")).expect("a plan");
        let mut chains =
            Chains::new(&stages, program.source, Settings::default()).expect("a source stage");
        let mut loaded = chains.load(&stages, &plan, program).expect("stages");
        let file = maps.open(file.path()).expect("the file");
        let range = |at: usize| {
            let start = 8 * at as u64;
            (at as u64, (at, Range { start, end: start + 8, file_end: 16, skips: false }, 8))
        };
        test(&mut Run {
            loaded: &mut loaded,
            plan: &plan,
            opened: &Opened { file, batches: Batches::default() },
            waiting: VecDeque::new(),
            in_flight: [0, 1].map(range).into(),
            left: Vec::new(),
            done_bytes: 0,
            window: 2,
            next_tag: 2,
            is_limited,
            is_over: false,
            failure: None,
        });
    }

    fn fail(run: &mut Run<'_>, tag: u64) {
        let (end, mut stats) = (Err(ReadError::Stale), Stats::default());
        run.ended(tag, end, &mut stats, &mut |_, _, _, _| Ok(Next::AsAnswered));
    }

    /// Ends the chain of a record with its row, which is enough.
    fn answer_enough(run: &mut Run<'_>, tag: u64) {
        let mut answer = [0_u8; 32];
        answer[..8].copy_from_slice(&(8 * tag + 8).to_le_bytes());
        let info = ReadInfo { hops: 1, executor: Executor::Local, stale: 0 };
        let mut stats = Stats::default();
        let end = Ok((answer.as_slice(), info));
        run.ended(tag, end, &mut stats, &mut |_, _, _, _| Ok(Next::Enough));
        assert_eq!(stats.chains, 1);
    }

    fn failed(run: &Run<'_>) -> Option<usize> {
        run.failure.as_ref().map(|(index, _)| *index)
    }

    #[test]
    fn the_first_failure_ends_a_run_of_all_rows() {
        with_two_chains(false, |run| {
            fail(run, 1);
            assert!(run.is_over && failed(run) == Some(1));
            fail(run, 0);
            assert_eq!(failed(run), Some(1));
        });
    }

    #[test]
    fn a_failure_counts_only_if_the_rows_before_it_are_too_few() {
        with_two_chains(true, |run| {
            fail(run, 1);
            assert!(!run.is_over && failed(run) == Some(1));
            answer_enough(run, 0);
            assert!(run.is_over && failed(run).is_none());
        });
        // The rows of the second range do not count.
        with_two_chains(true, |run| {
            fail(run, 0);
            answer_enough(run, 1);
            assert_eq!(failed(run), Some(0));
        });
        with_two_chains(true, |run| {
            fail(run, 1);
            fail(run, 0);
            assert_eq!(failed(run), Some(0));
        });
        with_two_chains(true, |run| {
            answer_enough(run, 0);
            fail(run, 1);
            assert!(run.is_over && failed(run).is_none());
        });
    }
}
