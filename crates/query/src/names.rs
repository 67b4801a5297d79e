//! Names in messages, which may be long and many.

/// Maximum length of a name or part of a statement in a message, in characters.
const NAME_MAX_CHARS: usize = 80;
/// Maximum number of names that a message lists.
const LISTED_MAX: usize = 20;

/// A name, truncated if it is long.
pub(crate) fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME_MAX_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// Lists names; only the first ones if there are many.
#[must_use]
pub fn listed(names: &[&str]) -> String {
    let first: Vec<String> = names.iter().take(LISTED_MAX).map(|name| shortened(name)).collect();
    match names.len().saturating_sub(LISTED_MAX) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}
