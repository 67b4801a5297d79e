//! The fenced blocks of a page, and the commands in them.

/// A fenced block of a page.
pub(crate) struct Block {
    pub(crate) language: String,
    /// The file name in the line above it, if that line ends with "`name`:".
    pub(crate) file: Option<String>,
    pub(crate) text: String,
}

/// All blocks, in order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    let mut above = "";
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let name = above.strip_suffix("`:").and_then(|text| text.rsplit('`').next());
            let inside = lines.by_ref().take_while(|line| *line != "```");
            let text = inside.map(|line| format!("{line}\n")).collect();
            let file = name.map(str::to_owned);
            blocks.push(Block { language: language.to_owned(), file, text });
            above = "";
        } else if !line.is_empty() {
            above = line;
        }
    }
    blocks
}

/// The commands of a block: its lines, where a line that ends with a backslash is joined with the
/// next.
pub(crate) fn commands(block: &str) -> Vec<String> {
    block.replace("\\\n", " ").lines().map(str::to_owned).collect()
}

/// Whether a line of output matches a line of the page, in which "…" stands for any text.
pub(crate) fn is_as(line: &str, expected: &str) -> bool {
    let Some((start, rest)) = expected.split_once('…') else { return line == expected };
    let Some(mut left) = line.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('…').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, behind)) = left.split_once(part) else { return false };
        left = behind;
    }
    left.ends_with(end)
}

#[test]
fn what_is_compared_can_differ() {
    assert!(is_as("a: 5 hops", "a: …") && is_as("a: 5 hops", "…hops") && is_as("a", "a"));
    assert!(is_as("run: 1, then 2", "…: 1,…2") && !is_as("run: 1, then 2", "…: 2…1…"));
    assert!(!is_as("a: 5 hops", "a: 5") && !is_as("a: 5 hops", "…5") && !is_as("ab", "b…"));
}
