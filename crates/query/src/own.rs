//! The user's own stages, which follow the contract of `functions/include/bpfof/batch.h`.

use crate::infer::number_fields;
use crate::names::listed;
use crate::plan::{Column, OwnReduction, OwnStage, OwnStages, Plan, Schema};
use bpfof_host::files::FileMaps;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Version of the contract (`BPFOF_OWN_VERSION`).
const VERSION: &str = "1";
/// Maximum size of an object. A longer object is refused.
const OBJECT_MAX_BYTES: u64 = 1 << 20;
/// The syntax of a stage.
const HOW: &str = "write FILE.o(COLUMN, …), and of a reduction FILE.o(COLUMN, …) -> NAME KIND, …";

/// The reason why a stage is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OwnStageError(String);

/// The user's specification of a stage: `near.bpf.o(lat, lon)`, or of a reduction `powers.bpf.o(n) -> power u64, rows
/// u64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnStageName {
    path: PathBuf,
    columns: Vec<String>,
    answers: Vec<Column>,
}

impl OwnStageName {
    /// Parses the specification of a filter.
    ///
    /// # Errors
    /// The specification is invalid.
    pub fn filter(text: &str) -> Result<Self, OwnStageError> {
        Self::parse(text, false)
    }

    /// Parses the specification of a reduction.
    ///
    /// # Errors
    /// The specification is invalid.
    pub fn reduction(text: &str) -> Result<Self, OwnStageError> {
        Self::parse(text, true)
    }

    fn parse(text: &str, answers: bool) -> Result<Self, OwnStageError> {
        let wrong = |why: &str| OwnStageError(format!("{text:?}: {why}: {HOW}"));
        let (stage, fields) = match text.rsplit_once("->") {
            Some((stage, fields)) => (stage, Some(fields)),
            None => (text, None),
        };
        let named = stage.trim_end().strip_suffix(')').and_then(|named| named.rsplit_once('('));
        let (path, columns) = named.ok_or_else(|| wrong("no columns in parentheses"))?;
        if path.trim().is_empty() {
            return Err(wrong("no file"));
        }
        let names = columns.split(',').map(|name| name.trim().trim_matches('"').to_owned());
        let columns: Vec<String> = names.filter(|name| !name.is_empty()).collect();
        let answers = match (answers, fields) {
            (true, Some(fields)) => number_fields(fields).map_err(OwnStageError)?,
            (true, None) => return Err(wrong("the numbers that it answers are missing")),
            (false, Some(_)) => return Err(wrong("a filter answers nothing")),
            (false, None) => Vec::new(),
        };
        Ok(Self { path: PathBuf::from(path.trim()), columns, answers })
    }

    fn read(&self, place: &str, columns: &[Column]) -> Result<OwnStage, OwnStageError> {
        let name = self.path.display().to_string();
        let wrong = |why: String| OwnStageError(format!("{name}: {why}"));
        let mut object = Vec::new();
        // Check the file type before opening: opening a FIFO blocks until a writer opens it.
        let is_file = fs::metadata(&self.path).map_err(|error| wrong(error.to_string()))?.is_file();
        if !is_file {
            return Err(wrong("it is not a regular file".to_owned()));
        }
        File::open(&self.path)
            .and_then(|file| file.take(OBJECT_MAX_BYTES + 1).read_to_end(&mut object))
            .map_err(|error| wrong(error.to_string()))?;
        check_object(place, &object).map_err(wrong)?;
        let index = |wanted: &String| {
            columns.iter().position(|column| column.name == *wanted).ok_or_else(|| {
                let known: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
                wrong(format!("there is no column {wanted}; the columns are {}", listed(&known)))
            })
        };
        let columns = self.columns.iter().map(index).collect::<Result<_, _>>()?;
        let short = self.path.file_name().map_or(Path::new(&self.path), Path::new);
        Ok(OwnStage { name: short.display().to_string(), object, columns })
    }
}

/// Checks that an object is a stage for this place. It is verified here, before it is sent to a target.
fn check_object(place: &str, object: &[u8]) -> Result<(), String> {
    let function = FileMaps::local().load_function(object, 0).map_err(|error| match error {
        bpfof_host::Error::FunctionRejected(why) => why,
        error => error.to_string(),
    })?;
    let name = function.name();
    let of_contract = name.strip_prefix("own_").and_then(|rest| rest.rsplit_once('_'));
    match of_contract {
        Some((found, VERSION)) if found == place => Ok(()),
        Some((found, VERSION)) => Err(format!("it is a {found} and not a {place}")),
        Some((_, version)) => Err(format!(
            "it implements version {version} of the contract between stages, but version {VERSION} is needed: \
             compile it with the bpfof/batch.h of this version"
        )),
        None => Err(format!(
            "{name} is not a stage of a query: mark its function with BPFOF_OWN_{} of bpfof/batch.h",
            place.to_uppercase()
        )),
    }
}

impl OwnStages {
    /// Reads stages from their files, and appends the columns that a reduction answers to the schema.
    ///
    /// # Errors
    /// A file is not a stage, or a column does not exist.
    pub fn read(
        filter: Option<&OwnStageName>,
        reduction: Option<&OwnStageName>,
        schema: &mut Schema,
    ) -> Result<Self, OwnStageError> {
        let filter = filter.map(|filter| filter.read("filter", &schema.columns)).transpose()?;
        let reduction = match reduction {
            None => None,
            Some(named) => {
                let stage = named.read("reduction", &schema.columns)?;
                schema.columns.extend(named.answers.iter().cloned());
                Some(OwnReduction { stage, answers: named.answers.len() })
            }
        };
        Ok(Self { filter, reduction })
    }

    pub(crate) fn columns(&self) -> impl Iterator<Item = usize> + '_ {
        let reduction = self.reduction.as_ref().map(|reduction| &reduction.stage);
        let stages = self.filter.iter().chain(reduction);
        stages.flat_map(|stage| stage.columns.iter().copied())
    }
}

impl Plan {
    /// Number of the schema's columns that are columns of the files; behind them are those that the user's own
    /// reduction answers.
    pub(crate) fn file_columns(&self) -> usize {
        let answers = self.own.reduction.as_ref().map_or(0, |reduction| reduction.answers);
        self.schema.columns.len().saturating_sub(answers)
    }
}

impl OwnStage {
    /// Describes it: its name, and the columns that it uses.
    pub(crate) fn describe(&self, plan: &Plan) -> String {
        let names: Vec<&str> =
            self.columns.iter().map(|index| &*plan.schema.columns[*index].name).collect();
        format!("{}({})", self.name, names.join(", "))
    }
}
