//! The consistency of the documents: links have targets, and everything that documents and code
//! name exists.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::support::*;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files with this ending in a folder and its subfolders.
pub fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = vec![];
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
        let is_kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let kept: String = heading.chars().filter(is_kept).collect();
        let first = kept.to_lowercase().replace(' ', "-");
        let (mut anchor, mut number) = (first.clone(), 0);
        while !self.anchors.insert(anchor) {
            number += 1;
            anchor = format!("{first}-{number}");
        }
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
            "CONTRIBUTING.md",
            "SECURITY.md",
            "lua/README.md",
            "lua/vectors.md",
            "clients/README.md",
        ]
        .map(PathBuf::from),
    );
    paths.extend(files("examples", ".md"));
    for package in ["python", "node", "php", "ruby", "go"] {
        paths.push(format!("clients/{package}/README.md").into());
    }
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

/// The address of the crate's documentation, where README.md is the root and documents are modules.
const MODULES: &str = "https://docs.rs/counterfoil/latest/counterfoil/";
/// The address of the package's files.
const FILES: &str = "https://docs.rs/crate/counterfoil/latest/source/";

/// Returns the file of the repository to which a link of the published documentation leads: a path
/// that does not exist if nothing is published there, `None` for relative links and other sites.
fn published(link: &str) -> Option<PathBuf> {
    if let Some(file) = link.strip_prefix(FILES) {
        let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
        let folder = file.split('/').next().unwrap();
        let is_packaged = [folder, file]
            .iter()
            .any(|path| manifest.contains(&format!("\"/{path}\"")));
        return Some(if is_packaged { file } else { "not packaged" }.into());
    }
    let module = match link.strip_prefix(MODULES) {
        Some(page) => page.strip_suffix("index.html").unwrap_or("not a page"),
        None => link.strip_prefix("crate")?.trim_start_matches("::"),
    };
    let module = module.trim_end_matches('/');
    let library = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    Some(if module.is_empty() {
        "README.md".into()
    } else if library.contains(&format!("pub mod {module} {{}}")) {
        format!("docs/{module}.md").into()
    } else {
        "not a module".into()
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
    let target = match published(file) {
        Some(target) => target,
        None if file.starts_with("https://") => return None,
        None if file.is_empty() => from.to_owned(),
        None => plain(&from.parent().unwrap().join(file)),
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

/// Checks the links of these documents, more than `least` in number.
fn check_links<'d>(
    documents: impl IntoIterator<Item = (&'d Path, &'d Document)>,
    least: usize,
    why: impl Fn(&Path, &str) -> Option<&'static str>,
) {
    let (mut checked, mut wrong) = (0, vec![]);
    for (path, document) in documents {
        for link in &document.links {
            checked += 1;
            wrong.extend(why(path, link).map(|why| format!("{}: {link}: {why}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked > least, "{checked} links");
}

#[test]
fn every_link_leads_somewhere() {
    let documents = documents();
    let all = documents.iter().map(|(path, document)| (&**path, document));
    check_links(all, 100, |path, link| broken(&documents, path, link));
}

/// On crates.io the README's relative links lead nowhere, and in rustdoc those of all documents.
#[test]
fn every_link_leads_somewhere_when_it_is_published() {
    let documents = documents();
    let folder = Path::new(env!("OUT_DIR"));
    let published = [
        ("README.md", root().join("README.md")),
        ("docs/guide.md", folder.join("guide.md")),
        ("docs/operations.md", folder.join("operations.md")),
        ("docs/protocol.md", folder.join("protocol.md")),
    ];
    let published = published.map(|(path, file)| (Path::new(path), Document::read(&file)));
    let all = published.iter().map(|(path, document)| (*path, document));
    check_links(all, 50, |path, link| {
        let starts = ["#", "https://", "crate"];
        if starts.iter().any(|start| link.starts_with(start)) {
            broken(&documents, path, link)
        } else {
            Some("a relative link")
        }
    });
}

/// The prefixes of paths. Code in a document that begins with one of these is a path.
const FOLDERS: [&str; 8] = [
    "src/",
    "lua/",
    "model/",
    "docs/",
    "tests/",
    "examples/",
    "benches/",
    "cli/",
];

#[test]
fn every_file_that_a_document_names_exists() {
    let (mut checked, mut wrong) = (0, vec![]);
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
    let words = text
        .lines()
        .map(|line| line.trim_start().trim_start_matches(['/', '!', '-']).trim())
        .flat_map(str::split_whitespace)
        .collect::<Vec<_>>()
        .join(" ");
    let mut sections = vec![];
    for citation in words.split("docs/protocol.md, section").skip(1) {
        let citation = citation.strip_prefix('s').unwrap_or(citation);
        let numbers = citation
            .split_whitespace()
            .take_while(|word| {
                word.starts_with(|c: char| c.is_ascii_digit()) || ["and", "to"].contains(word)
            })
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
    let (mut checked, mut wrong) = (0, vec![]);
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

/// Returns the values of `key` in a manifest, or in one of its sections.
fn in_manifest(manifest: &str, key: &str) -> String {
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{key} = ")));
    line.unwrap_or_else(|| panic!("no {key}")).to_owned()
}

#[test]
fn the_front_page_names_versions_and_features() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let readme = Document::read(Path::new("README.md"));
    let rust = in_manifest(&manifest, "rust-version");
    let rust = format!("Rust {} or later", rust.trim_matches('"'));
    let script = fs::read_to_string(root().join("dev")).unwrap();
    assert!(readme.text.contains(&rust), "{rust}");
    assert_eq!(script.matches(&rust).count(), 2, "./dev: {rust}");
    for name in ["redis", "sqlx"] {
        let version = in_manifest(&manifest, name);
        let version = version.split('"').nth(1).unwrap();
        assert!(readme.text.contains(&format!("{name} {version}")), "{name}");
    }
    let features = manifest.split("[features]").nth(1).unwrap();
    let features = features.split("\n[").next().unwrap();
    let names = features.lines().filter_map(|line| line.split_once(" = "));
    let names: Vec<_> = names.map(|(name, _)| name.to_owned()).collect();
    let public = names
        .iter()
        .filter(|name| !["default", "test-hooks"].contains(&name.as_str()));
    let missing: Vec<_> = public.filter(|name| !readme.code.contains(name)).collect();
    assert!(names.len() > 5 && missing.is_empty(), "{missing:?}");
}
