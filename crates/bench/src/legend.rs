//! The text below each table: an explanation of its words, a quotable sentence, and disturbances of the measurement.

use crate::steal;
use std::fmt::Write as _;

/// A word of a table, and its meaning.
pub(crate) type Word<'a> = (&'a str, &'a str);

pub(crate) const SPREAD: Word<'static> = (
    "± %",
    "distance of the fastest and the slowest repetition from the median; the figures are medians",
);
pub(crate) const QUANTILES: Word<'static> =
    ("p50, p99", "latency that half of the operations, and 99 of a hundred, do not exceed");
pub(crate) const PROCESSOR: Word<'static> =
    ("host µs", "processor time of one operation at the host; target µs at the target");
pub(crate) const DEPTH: Word<'static> =
    ("depth", "operations in flight, on one connection, by one thread");
pub(crate) const CACHE: Word<'static> =
    ("cache", "levels of the tree that the host holds in memory");

/// The width at which text is wrapped.
const WIDTH: usize = 110;

/// The end of a table. `lost` is the share that a hypervisor took, of 1 ([`steal::lost_most`]).
pub(crate) fn end(words: &[Word<'_>], sentence: Option<String>, lost: f64) -> String {
    let mut text = format!("\n{}", legend(words));
    if let Some(sentence) = sentence {
        let _ = write!(text, "\n{}", wrapped(&sentence, 0));
    }
    if let Some(remark) = steal::remark(lost) {
        let _ = write!(text, "\n{}", wrapped(&remark, 0));
    }
    text
}

/// A line for each word, with its meaning wrapped in its own column.
fn legend(words: &[Word<'_>]) -> String {
    let indent = 2 + words.iter().map(|(word, _)| word.chars().count()).max().unwrap_or(0);
    let line = |(word, meaning): &Word<'_>| format!("{word:<indent$}{}", wrapped(meaning, indent));
    words.iter().map(line).collect()
}

/// Wraps a text; all lines but the first are indented.
fn wrapped(text: &str, indent: usize) -> String {
    let (mut lines, mut column) = (String::new(), indent);
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > indent && column + 1 + length > WIDTH {
            let _ = write!(lines, "\n{:indent$}", "");
            column = indent;
        } else if column > indent {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines + "\n"
}

/// Panics unless each of these words has a line of its own in the text, and the last line is a sentence that contains
/// `sentence`.
#[cfg(test)]
pub(crate) fn assert_explained(text: &str, words: &[&str], sentence: &str) {
    for word in words {
        let explains =
            |line: &str| line.strip_prefix(word).is_some_and(|rest| rest.starts_with([' ', ',']));
        assert!(text.lines().any(explains), "{word} is not explained in\n{text}");
    }
    let (_, last) = text.trim_end().rsplit_once("\n\n").unwrap_or_default();
    let last = last.replace('\n', " ");
    assert!(last.contains(sentence) && last.ends_with('.'), "{last}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_below_each_other() {
        let long = "word ".repeat(40);
        let text = end(&[("µs", "short"), ("a word", long.trim())], Some("So it is.".into()), 0.0);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["", "µs      short"]);
        assert!(
            lines[2].starts_with("a word  word") && lines[3].starts_with("        word"),
            "{text}"
        );
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches("word").count(), 41);
        assert_explained(&text, &["µs", "a word"], "So it is");
    }

    #[test]
    fn stolen_time_is_mentioned() {
        let text = end(&[], Some("So it is.".into()), 0.013);
        assert!(text.starts_with("\n\nSo it is.\n\nA hypervisor took up to 1.3 %"), "{text}");
    }
}
