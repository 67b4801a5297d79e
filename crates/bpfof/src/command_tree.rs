//! The tree of commands, from which short help, manual pages and completions are generated.

use bpfof_terminal::Outcome;
use clap::error::ErrorKind;
use clap::{Arg, Args, Command, CommandFactory, FromArgMatches};
use clap_complete::Shell;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Longer words of an error message are cut.
const MAX_WORD_CHARS: usize = 200;
/// Characters that are left of such a word.
const CUT_CHARS: usize = 60;
/// Columns that a line of the short help may have.
const HELP_COLUMNS: usize = 120;

#[derive(Args)]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct Manual {
    /// Folder for the pages, one for each command.
    folder: PathBuf,
}

/// The tree of commands; `-h` has one line for each option, `--help` the full text.
fn tree<C: CommandFactory>() -> Command {
    shorten(C::command()).term_width(HELP_COLUMNS)
}

fn shorten(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_help().map(ToString::to_string) {
        Some(help) if arg.get_long_help().is_none() => with_summary(arg, help),
        _ => arg,
    });
    let names: Vec<String> =
        command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, shorten))
}

fn with_summary(arg: Arg, help: String) -> Arg {
    let summary = summary(&help).to_owned();
    arg.help(summary).long_help(help)
}

/// The beginning of a text: its first sentence, or the part of it before a colon or semicolon.
fn summary(text: &str) -> &str {
    let ends = [". ", ": ", "; ", " ["].iter().filter_map(|end| text.find(end));
    text[..ends.min().unwrap_or(text.len())].trim_end_matches('.')
}

/// Parses the command line. Prints errors, in which long words are cut.
pub(crate) fn parse<C: CommandFactory + FromArgMatches>() -> Result<C, ExitCode> {
    let matches = tree::<C>().try_get_matches();
    match matches.and_then(|matches| C::from_arg_matches(&matches)) {
        Ok(cli) => Ok(cli),
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            error.exit()
        }
        Err(error) => {
            let text = error.to_string();
            match cut(&text) {
                cut if cut == text => error.exit(),
                cut => eprint!("{cut}"),
            }
            Err(ExitCode::from(2))
        }
    }
}

/// A text whose long words are cut.
fn cut(text: &str) -> String {
    let cut = |word: &str| match word.chars().count() > MAX_WORD_CHARS {
        true => word.chars().take(CUT_CHARS).chain("…".chars()).collect(),
        false => word.to_owned(),
    };
    text.split_inclusive(char::is_whitespace)
        .map(|word| {
            let kept = cut(word.trim_end());
            kept + &word[word.trim_end().len()..]
        })
        .collect()
}

pub(crate) fn completions<C: CommandFactory>(options: &Completions) -> Outcome {
    // Writing may fail, which the generator takes for a defect.
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut tree::<C>(), "bpfof", &mut script);
    Ok(bpfof_terminal::output().write_all(&script)?)
}

pub(crate) fn manual<C: CommandFactory>(options: &Manual) -> Outcome {
    let failed = |error| format!("cannot write to {}: {error}", options.folder.display());
    std::fs::create_dir_all(&options.folder).map_err(failed)?;
    Ok(clap_mangen::generate_to(tree::<C>(), &options.folder).map_err(failed)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_one_line() {
        let full =
            "A namespace, repeatable, ids from 1: mem:size=1GiB. More of it [default: none].";
        assert_eq!(summary(full), "A namespace, repeatable, ids from 1");
        assert_eq!(summary("Print JSON."), "Print JSON");
        assert_eq!(summary("Key of NVMe 2.0, once"), "Key of NVMe 2.0, once");
    }

    #[test]
    fn long_words_are_cut_and_nothing_else() {
        let text = format!("error: invalid value '{}' for\n  '--x <X>'\n", "ä".repeat(500));
        let cut = cut(&text);
        assert!(
            cut.starts_with("error: invalid value 'ää") && cut.ends_with("… for\n  '--x <X>'\n")
        );
        assert!(cut.chars().count() < 120, "{cut}");
        assert_eq!(super::cut("as it is\n"), "as it is\n");
    }
}
