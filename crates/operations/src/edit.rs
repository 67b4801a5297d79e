//! Changes the namespaces in a target's configuration file, and nothing else of its text.

use bpfof_controller::{MAX_NSID, NamespaceConfig, TargetConfig, parse_size};
use std::path::PathBuf;
use toml_edit::{Array, DocumentMut, Item, Value};

/// A change of the namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Adds a namespace, written as for `--namespace`. It gets the next free id if it names none.
    Add(String),
    /// Removes the namespace with this id.
    Remove(Place),
    /// Gives the namespace with this id this size, written as in `size=`.
    Resize(Place, String),
}

impl Edit {
    /// The same change for another text: an added namespace gets the id of `place`, which it has already.
    #[must_use]
    pub fn at(&self, place: &Place) -> Edit {
        match self {
            Edit::Add(spec) if !names_id(spec) => Edit::Add(with_id(spec, place.nsid)),
            edit => edit.clone(),
        }
    }
}

/// The subsystem and id of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its subsystem; none for the target's own.
    pub subsystem: Option<String>,
    /// Its id there.
    pub nsid: u32,
}

/// Why a change was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EditError(String);

fn refused<T>(why: impl ToString) -> Result<T, EditError> {
    Err(EditError(why.to_string()))
}

/// A configuration; `nqn` is the name of the target's own subsystem, if it is not the one in the text.
fn configuration(text: &str, nqn: Option<&str>) -> Result<TargetConfig, EditError> {
    let mut config = TargetConfig::from_toml(text).map_err(EditError)?;
    if let Some(nqn) = nqn {
        nqn.clone_into(&mut config.nqn);
    }
    Ok(config)
}

/// The files behind a namespace of a configuration; none if there is no such namespace. `nqn` is the name of the
/// target's own subsystem, if it is not the one in the text.
///
/// # Errors
/// The text is not a configuration.
pub fn storage_of(
    text: &str,
    place: &Place,
    nqn: Option<&str>,
) -> Result<Option<Vec<PathBuf>>, EditError> {
    let config = configuration(text, nqn)?;
    let found = find(&config, place).ok();
    Ok(found.map(|at| config.namespaces[at].source.paths().to_vec()))
}

/// Whether two configurations have the same namespaces.
///
/// # Errors
/// One of the texts is not a configuration.
pub fn have_same_namespaces(one: &str, other: &str) -> Result<bool, EditError> {
    let namespaces = |text| TargetConfig::from_toml(text).map(|config| config.namespaces);
    Ok(namespaces(one).map_err(EditError)? == namespaces(other).map_err(EditError)?)
}

/// Returns the text of a configuration file with its namespaces changed, and the namespace that has changed.
///
/// The other namespaces keep their ids: an id that was a position is written into the text if the position changes.
/// `nqn` is the name of the target's own subsystem, if it is not the one in the text.
///
/// # Errors
/// The text is not a configuration, there is no such namespace, or the new one is invalid.
pub fn apply(text: &str, edit: &Edit, nqn: Option<&str>) -> Result<(String, Place), EditError> {
    let config = configuration(text, nqn)?;
    let mut document: DocumentMut = text.parse().map_err(|error| EditError(format!("{error}")))?;
    let list = document.entry("namespaces").or_insert(Item::Value(Value::Array(Array::new())));
    let Some(list) = list.as_array_mut() else { return refused("namespaces is not a list") };
    let place = match edit {
        Edit::Add(spec) => add(list, &config, spec)?,
        Edit::Remove(place) => {
            let at = find(&config, place)?;
            // The later namespaces are about to change their positions.
            for (later, (_, nsid)) in ids(&config).into_iter().enumerate().skip(at + 1) {
                if config.namespaces[later].nsid.is_none() {
                    replace(list, later, |spec| with_id(spec, nsid))?;
                }
            }
            list.remove(at);
            place.clone()
        }
        Edit::Resize(place, size) => {
            parse_size(size).map_err(EditError)?;
            let at = find(&config, place)?;
            replace(list, at, |spec| with_size(spec, size))?;
            place.clone()
        }
    };
    let edited = document.to_string();
    TargetConfig::from_toml(&edited).map_err(EditError)?;
    Ok((edited, place))
}

fn add(list: &mut Array, config: &TargetConfig, spec: &str) -> Result<Place, EditError> {
    let namespace: NamespaceConfig = spec.parse().map_err(|error| EditError(format!("{error}")))?;
    let subsystem = namespace.subsystem.filter(|nqn| *nqn != config.nqn);
    let taken: Vec<u32> =
        ids(config).into_iter().filter(|(of, _)| *of == subsystem).map(|(_, nsid)| nsid).collect();
    let (spec, nsid) = match namespace.nsid {
        Some(nsid) if taken.contains(&nsid) => return refused(format!("nsid={nsid} is taken")),
        Some(nsid) => (spec.to_owned(), nsid),
        None => {
            // An id above all others, as long as there is one.
            let next = taken.iter().max().map_or(1, |last| last + 1);
            let mut free = [next].into_iter().chain(1..=MAX_NSID);
            let free = free.find(|nsid| *nsid <= MAX_NSID && !taken.contains(nsid));
            let Some(nsid) = free else { return refused(format!("all {MAX_NSID} ids are taken")) };
            (with_id(spec, nsid), nsid)
        }
    };
    list.push(spec);
    Ok(Place { subsystem, nsid })
}

fn names_id(spec: &str) -> bool {
    spec.parse::<NamespaceConfig>().is_ok_and(|namespace| namespace.nsid.is_some())
}

fn with_id(spec: &str, nsid: u32) -> String {
    format!("{spec},nsid={nsid}")
}

/// The subsystem (none for the target's own) and the id of each namespace.
fn ids(config: &TargetConfig) -> Vec<(Option<String>, u32)> {
    let mut ids: Vec<(Option<String>, u32)> = Vec::new();
    for namespace in &config.namespaces {
        let subsystem = namespace.subsystem.clone().filter(|nqn| *nqn != config.nqn);
        let before = ids.iter().filter(|(of, _)| *of == subsystem).count() as u32;
        ids.push((subsystem, namespace.nsid.unwrap_or(before + 1)));
    }
    ids
}

fn find(config: &TargetConfig, place: &Place) -> Result<usize, EditError> {
    let subsystem = place.subsystem.clone().filter(|nqn| *nqn != config.nqn);
    let wanted = (subsystem, place.nsid);
    ids(config).iter().position(|known| *known == wanted).ok_or_else(|| {
        let of = wanted.0.as_deref().unwrap_or(&config.nqn);
        EditError(format!("{of} has no namespace {}", place.nsid))
    })
}

/// Changes an entry of the list, and keeps its comments.
fn replace(
    list: &mut Array,
    at: usize,
    change: impl FnOnce(&str) -> String,
) -> Result<(), EditError> {
    let entry = list.get_mut(at).filter(|entry| entry.is_str());
    let Some(Value::String(entry)) = entry else {
        return refused("an entry of namespaces is not a string");
    };
    let decor = entry.decor().clone();
    *entry = toml_edit::Formatted::new(change(entry.value()));
    *entry.decor_mut() = decor;
    Ok(())
}

fn with_size(spec: &str, size: &str) -> String {
    let (kind, options) = spec.split_once(':').unwrap_or((spec, ""));
    let others = options.split(',').filter(|option| !option.starts_with("size="));
    let size = format!("size={size}");
    let options: Vec<&str> = others.chain([size.as_str()]).collect();
    format!("{kind}:{}", options.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"# The first target.
listen = "127.0.0.1:4420"
namespaces = [
    "mem:size=1MiB", # scratch
    "file:path=/srv/a,size=1GiB,nqn=nqn.2026-01.org.example:b",
    # Old, but needed.
    "mem:size=2MiB",
]
"#;

    fn place(nsid: u32) -> Place {
        Place { subsystem: None, nsid }
    }

    #[test]
    fn ids_and_comments_stay() {
        let (text, _) = apply(FILE, &Edit::Remove(place(1)), None).expect("removed");
        assert!(text.contains("\"mem:size=2MiB,nsid=2\"") && !text.contains("size=1MiB"), "{text}");
        assert!(text.starts_with("# The first target.") && text.contains("# Old, but"), "{text}");
        let of_b = Place { subsystem: Some("nqn.2026-01.org.example:b".into()), nsid: 1 };
        let (text, _) =
            apply(FILE, &Edit::Resize(of_b.clone(), "2GiB".into()), None).expect("resized");
        assert!(
            text.contains("\"file:path=/srv/a,nqn=nqn.2026-01.org.example:b,size=2GiB\""),
            "{text}"
        );
        assert!(text.contains("# scratch"), "{text}");
        let (text, added) = apply(FILE, &Edit::Add("mem:size=4MiB".into()), None).expect("added");
        assert_eq!(added, place(3));
        assert!(text.contains("mem:size=4MiB,nsid=3"), "{text}");
        let (_, added) = apply("", &Edit::Add("mem:size=4MiB,nsid=9".into()), None).expect("added");
        assert_eq!(added, place(9));
        assert_eq!(storage_of(&text, &place(3), None), Ok(Some(Vec::new())));
        assert_eq!(storage_of(&text, &place(4), None), Ok(None));
        assert_eq!(storage_of(FILE, &of_b, None), Ok(Some(vec![PathBuf::from("/srv/a")])));
        assert_eq!(have_same_namespaces(FILE, &text), Ok(false));
        assert_eq!(have_same_namespaces(&format!("{FILE}poll = true"), FILE), Ok(true));
    }

    /// A namespace that names a subsystem is in the target's own if an option gives it that name.
    #[test]
    fn the_own_subsystem_may_have_another_name_than_in_the_text() {
        let b = "nqn.2026-01.org.example:b";
        let of_b = |nsid| Place { subsystem: Some(b.into()), nsid };
        let storage = |place: &Place| storage_of(FILE, place, Some(b)).expect("a configuration");
        // In the order of the file: memory, /srv/a, memory.
        assert_eq!(storage(&of_b(2)), Some(vec![PathBuf::from("/srv/a")]));
        assert_eq!((storage(&place(1)), storage(&of_b(3))), (Some(vec![]), Some(vec![])));
        let (text, _) = apply(FILE, &Edit::Remove(of_b(1)), Some(b)).expect("removed");
        assert!(
            text.contains("nqn=nqn.2026-01.org.example:b,nsid=2") && !text.contains("size=1MiB")
        );
        let (_, added) = apply(FILE, &Edit::Add("mem:size=4MiB".into()), Some(b)).expect("added");
        assert_eq!(added, place(4));
    }

    #[test]
    fn a_free_id_is_found_as_long_as_there_is_one() {
        let add = Edit::Add("mem:size=1MiB".into());
        let (text, _) =
            apply(FILE, &Edit::Add("mem:size=1MiB,nsid=1024".into()), None).expect("added");
        let (text, added) = apply(&text, &add, None).expect("others are free");
        assert_eq!(added, place(3));
        assert_eq!(apply(&text, &add, None).expect("others are free").1, place(4));
        let specs: Vec<String> =
            (1..=MAX_NSID).map(|nsid| format!("\"mem:size=1MiB,nsid={nsid}\"")).collect();
        let full = format!("namespaces = [{}]", specs.join(", "));
        let error = apply(&full, &add, None).expect_err("none is free");
        assert!(error.to_string().contains("all 1024 ids are taken"), "{error}");
    }

    #[test]
    fn what_is_saved_later_has_the_id_that_is_served() {
        let add = Edit::Add("mem:size=4MiB".into());
        let (unsaved, _) = apply(FILE, &add, None).expect("added");
        let (_, served) = apply(&unsaved, &add, None).expect("added");
        let (saved, at) = apply(FILE, &add.at(&served), None).expect("added");
        assert_eq!((at, &served), (served.clone(), &place(4)));
        assert!(saved.contains("mem:size=4MiB,nsid=4"), "{saved}");
        let named = Edit::Add("mem:size=4MiB,nsid=9".into());
        assert_eq!(named.at(&place(9)), named);
    }

    #[test]
    fn invalid_edits_change_nothing() {
        let why = |edit| apply(FILE, &edit, None).expect_err("refused").to_string();
        assert!(why(Edit::Remove(place(7))).contains("has no namespace 7"));
        assert!(why(Edit::Add("mem:size=1MiB,nsid=2".into())).contains("nsid=2 is taken"));
        assert!(why(Edit::Add("tape:".into())).contains("unknown kind"));
        assert!(why(Edit::Resize(place(1), "big".into())).contains("big"));
        assert!(apply("namespaces = 3", &Edit::Remove(place(1)), None).is_err());
    }
}
