//! The consistency of the documents: links have targets, and everything that documents and code
//! name exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files with this ending in a folder and its subfolders.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let name = format!(
            "{folder}/{}",
            entry.unwrap().file_name().into_string().unwrap()
        );
        if root().join(&name).is_dir() {
            found.extend(files(&name, ending));
        } else if name.ends_with(ending) {
            found.push(name.into());
        }
    }
    found.sort();
    found
}

/// A document with its anchors, links and code.
#[derive(Default)]
struct Document {
    text: String,
    anchors: BTreeSet<String>,
    links: Vec<String>,
    /// Code within a sentence or table.
    code: Vec<String>,
}

impl Document {
    fn read(file: &Path) -> Self {
        let mut document = Document {
            text: fs::read_to_string(root().join(file)).unwrap(),
            ..Document::default()
        };
        let mut heading = None;
        let text = document.text.clone();
        // a link without a definition is text to the parser; here it is a broken link
        let undefined = |link: pulldown_cmark::BrokenLink| {
            Some((format!("undefined:{}", link.reference).into(), "".into()))
        };
        for event in
            Parser::new_with_broken_link_callback(&text, Options::ENABLE_TABLES, Some(undefined))
        {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => document.add_anchor(&heading.take().unwrap()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push(dest_url.into_string());
                }
                Event::Text(words) => heading
                    .iter_mut()
                    .for_each(|heading| heading.push_str(&words)),
                Event::Code(code) => {
                    heading
                        .iter_mut()
                        .for_each(|heading| heading.push_str(&code));
                    document.code.push(code.into_string());
                }
                _ => {}
            }
        }
        document
    }

    /// Adds the anchor that GitHub gives the heading. A repeated heading is numbered.
    fn add_anchor(&mut self, heading: &str) {
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone())
            .chain(numbered)
            .find(|anchor| !self.anchors.contains(anchor));
        self.anchors.extend(free);
    }
}

/// Returns all documents for people by path.
fn documents() -> BTreeMap<PathBuf, Document> {
    let mut paths = files("docs", ".md");
    assert!(paths.len() >= 5, "{paths:?}");
    paths.extend(
        [
            "README.md",
            "ARCHITECTURE.md",
            "CHANGELOG.md",
            "lua/README.md",
        ]
        .map(PathBuf::from),
    );
    paths.extend(files("examples", ".md"));
    paths
        .into_iter()
        .map(|path| (path.clone(), Document::read(&path)))
        .collect()
}

/// Simplifies a path: `docs/../README.md` is `README.md`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            std::path::Component::ParentDir => {
                assert!(plain.pop(), "{} is outside", path.display())
            }
            part => plain.push(part),
        }
        plain
    })
}

/// Returns the fault of a link in the document.
fn broken(
    documents: &BTreeMap<PathBuf, Document>,
    from: &Path,
    link: &str,
) -> Option<&'static str> {
    let (file, anchor) = link
        .split_once('#')
        .map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let target = if file.is_empty() {
        from.to_owned()
    } else {
        plain(&from.parent().unwrap().join(file))
    };
    if !root().join(&target).exists() {
        return Some("no such file");
    }
    match (anchor, documents.get(&target)) {
        (None, _) => None,
        (Some(anchor), Some(document)) if document.anchors.contains(anchor) => None,
        (Some(_), _) => Some("no such heading"),
    }
}

#[test]
fn every_link_leads_somewhere() {
    let documents = documents();
    let (mut checked, mut wrong) = (0, Vec::new());
    for (path, document) in &documents {
        for link in document
            .links
            .iter()
            .filter(|link| !link.starts_with("https://"))
        {
            checked += 1;
            wrong.extend(
                broken(&documents, path, link)
                    .map(|why| format!("{}: {link}: {why}", path.display())),
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked > 100, "{checked} links");
}

#[test]
fn a_link_that_leads_nowhere_is_noticed() {
    let documents = documents();
    let broken = |link| broken(&documents, Path::new("docs/guide.md"), link);
    assert_eq!(broken("../README.md#what-is-promised"), None);
    assert_eq!(
        broken("../README.md#what-is-not-promised"),
        Some("no such heading")
    );
    assert_eq!(broken("#no-such-kind"), Some("no such heading"));
    assert_eq!(broken("README.md"), Some("no such file"));
    assert_eq!(broken("undefined:guide"), Some("no such file"));
}

/// The prefixes of paths. Code in a document that begins with one of these is a path.
const FOLDERS: [&str; 7] = [
    "src/",
    "lua/",
    "model/",
    "docs/",
    "tests/",
    "examples/",
    "benches/",
];

#[test]
fn every_file_that_a_document_names_is_there() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for (path, document) in documents() {
        for code in document
            .code
            .iter()
            .filter(|code| FOLDERS.iter().any(|folder| code.starts_with(folder)))
        {
            checked += 1;
            if !root().join(code).exists() {
                wrong.push(format!("{}: {code}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked >= 15, "{checked} files");
}

/// Returns the cited sections of the protocol: `3.2` and `8` of "docs/protocol.md, sections 3.2 and
/// 8".
fn cited(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .map(|line| line.trim_start().trim_start_matches(['/', '!', '-']).trim());
    let words = lines
        .flat_map(str::split_whitespace)
        .collect::<Vec<_>>()
        .join(" ");
    let mut sections = Vec::new();
    for citation in words.split("docs/protocol.md, section").skip(1) {
        let citation = citation.strip_prefix('s').unwrap_or(citation);
        let words = citation.split_whitespace().take_while(|word| {
            word.starts_with(|c: char| c.is_ascii_digit()) || ["and", "to"].contains(word)
        });
        let numbers = words
            .map(|word| word.trim_end_matches(|c: char| !c.is_ascii_digit()))
            .filter(|word| !word.is_empty());
        let before = sections.len();
        sections.extend(numbers.map(str::to_owned));
        assert!(
            sections.len() > before,
            "no number behind docs/protocol.md, section: {citation:.40}"
        );
    }
    sections
}

#[test]
fn every_section_of_the_protocol_that_is_cited_is_there() {
    let protocol = Document::read(Path::new("docs/protocol.md"));
    let numbers = protocol.text.lines().filter_map(|line| {
        line.strip_prefix("##")?
            .trim_start_matches('#')
            .split(' ')
            .nth(1)
    });
    let numbers: BTreeSet<_> = numbers.map(|number| number.trim_end_matches('.')).collect();
    let sources = files("src", ".rs")
        .into_iter()
        .chain(files("src", ".sql"))
        .chain(files("tests/it", ".rs"));
    let (mut checked, mut wrong) = (0, Vec::new());
    for path in sources.filter(|path| !path.ends_with("tests/it/docs.rs")) {
        for section in cited(&fs::read_to_string(root().join(&path)).unwrap()) {
            checked += 1;
            if !numbers.contains(section.as_str()) {
                wrong.push(format!("{}: section {section}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked > 40, "{checked} citations");
}

#[test]
fn the_front_page_and_the_map_stay_short() {
    for file in ["README.md", "ARCHITECTURE.md"] {
        let lines = Document::read(Path::new(file)).text.lines().count();
        assert!(
            lines <= 200,
            "{file} has {lines} lines: what is longer belongs in docs/"
        );
    }
}
