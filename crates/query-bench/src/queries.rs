//! Queries at a target.

use crate::protocol::{Cost, Form, Query};
use bpfof_host::files::{FileMaps, NamespaceDevice, StorageFunction};
use bpfof_host::{Controller, Options, TargetUrl};
use bpfof_query::infer::{FormatName, Hints, Source};
use bpfof_query::output::{Output, Style};
use bpfof_query::sql::{Question, Statement};
use bpfof_query::{
    Argument, Part, Partial, Reduction, Runner, STAGES, Settings, Stage, Stages, install_stages,
    parts,
};
use std::path::{Path, PathBuf};

type Failure = Box<dyn std::error::Error>;

macro_rules! stage {
    ($name:literal) => {
        Stage {
            name: concat!("query_", $name),
            object: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")),
        }
    };
}

const FUSED: Stage = stage!("fused");
const SELECTED: Stage = stage!("selected");
const READ: Stage = stage!("read");
/// Size of a part of a query that answers rows, in bytes.
const ROWS_PART_BYTES: u64 = 64 << 20;

/// Connects to files on a device that the target serves. Installs the stages that the target does
/// not keep yet.
pub(crate) fn connect(url: &TargetUrl, device: &Path) -> Result<FileMaps, Failure> {
    let controller = Controller::connect(url, Options::default())?;
    let maps = FileMaps::new(controller, url.nsid, NamespaceDevice::new(device)?)?;
    maps.with_controller(install_stages).ok_or("the target has no pushdown")??;
    Ok(maps)
}

/// Queries of one association, which keeps the functions of earlier queries.
pub(crate) struct Queries<'a> {
    maps: &'a FileMaps,
    shipped: Stages<'a>,
    selected: Stages<'a>,
    fused: Stages<'a>,
    read: Stages<'a>,
}

/// A query bound to its files.
struct Bound {
    question: Question,
    source: Source,
    settings: Settings,
}

impl<'a> Queries<'a> {
    pub(crate) fn new(maps: &'a FileMaps) -> Self {
        let replacing = |by| Stages::new(maps).replacing("query_fixed", by);
        Self {
            maps,
            shipped: Stages::new(maps),
            selected: replacing(SELECTED),
            fused: replacing(FUSED),
            read: replacing(READ),
        }
    }

    fn stages(&self, form: Form) -> &Stages<'a> {
        match form {
            Form::Stages => &self.shipped,
            Form::Selected => &self.selected,
            Form::Fused => &self.fused,
            Form::Read => &self.read,
        }
    }

    /// Runs a query, from its text to the last byte of its answer.
    pub(crate) fn run(&mut self, query: &Query) -> Result<Cost, Failure> {
        let Bound { question, source, settings } = bind(query)?;
        let plan = question.plan();
        let mut runner = Runner::new(self.stages(query.form), plan, settings)?;
        let mut answers = question.answers();
        let mut whole = Partial::empty(plan);
        let mut text = Vec::new();
        let mut rows = Output::new(Style::Arrow, &question.names(), std::io::sink());
        let answers_rows = matches!(plan.reduction, Reduction::Rows { .. });
        let part_bytes = if answers_rows { ROWS_PART_BYTES } else { u64::MAX };
        for part in parts(plan, &source.files, part_bytes) {
            let partial = runner.run(&part, &mut |_| true)?;
            if question.streams() {
                rows.write(&answers.next(partial.finish(plan)?)?)?;
            } else {
                whole.merge(plan, partial)?;
            }
        }
        if !question.streams() {
            let mut output = Output::new(Style::Json, &question.names(), &mut text);
            output.write(&answers.next(whole.finish(plan)?)?)?;
            output.finish()?;
        }
        let stats = runner.stats();
        if stats.chains_at_target < stats.chains {
            return Err("some chains of the query ran on this machine instead of the target".into());
        }
        Ok(Cost {
            scanned_bytes: stats.scanned_bytes,
            network_bytes: stats.sent_bytes + stats.received_bytes,
            passed: stats.passed,
            hops: stats.hops,
            answer: String::from_utf8(text)?,
        })
    }

    /// Loads source, filter and fold for records at the target.
    pub(crate) fn load(&mut self) -> Result<Cost, Failure> {
        for name in ["query_fixed", "query_filter", "query_fold"] {
            let stage = STAGES.iter().find(|stage| stage.name == name);
            let stage = stage.ok_or_else(|| format!("there is no stage {name}"))?;
            let function: StorageFunction = self.maps.load_function(stage.object, 0)?;
            if let Some(id) = function.id() {
                self.maps.with_controller(|controller| controller.unload_function(id));
            }
        }
        Ok(Cost::default())
    }

    /// The fused function, and its argument for a file of `bytes` bytes like the query's.
    pub(crate) fn argument(
        &self,
        query: &Query,
        bytes: u64,
    ) -> Result<(StorageFunction, Argument), Failure> {
        let Bound { question, settings, .. } = bind(query)?;
        let plan = question.plan();
        let runner = Runner::new(self.stages(Form::Fused), plan, settings)?;
        let part = Part {
            path: PathBuf::new(),
            file_bytes: bytes,
            inode: 0,
            header_hash: 0,
            modified_ns: 0,
            start_bytes: 0,
            end_bytes: bytes,
        };
        let function = FileMaps::local().load_function(FUSED.object, 0)?;
        Ok((function, runner.argument(&part)))
    }
}

fn bind(query: &Query) -> Result<Bound, Failure> {
    let statement = Statement::parse(&query.sql)?;
    let schema = query.schema.clone();
    let format = schema.as_ref().map(|_| FormatName::Records);
    let source = Source::find(statement.files(), &Hints { schema, format, ..Hints::default() })?;
    let question = statement.bind(&source.schema, &source.format)?;
    let settings = Settings {
        chains: query.chains,
        falls_back: false,
        block_max_bytes: query.block_max_bytes,
        ..Settings::default()
    };
    Ok(Bound { question, source, settings })
}
