//! The folders of `src/` and of `cli/src/` use each other in one direction, and no two files import
//! each other.

use crate::docs::files;
use crate::support::*;

/// The sources of a package, and their layers. Each uses only earlier ones. Modules of one layer may
/// use each other's types, but not in a circle.
struct Package {
    root: &'static str,
    layers: &'static [&'static [&'static str]],
}

const LIBRARY: Package = Package {
    root: "src",
    layers: &[
        &["error", "finding", "metrics", "testing"],
        &["family"],
        &["connection"],
        &["scripts"],
        &["store"],
        &["admin"],
        &["process", "writer"],
        &["reconciler"],
        &["client"],
        &["recount"],
    ],
};

const CLI: Package = Package {
    root: "cli/src",
    layers: &[
        &[
            "config", "exit", "latency", "reason", "search", "signals", "status",
        ],
        &[
            "arguments",
            "certificates",
            "families",
            "limits",
            "output",
            "pair",
            "rejects",
            "view",
        ],
        &["health", "metrics", "probe", "state"],
        &["poll"],
        &["http"],
        &["daemon"],
        &["commands"],
    ],
};

type Uses = BTreeMap<String, BTreeSet<String>>;

/// Returns the modules that each module uses, by their paths without `crate::`. It leaves out uses
/// of a parent.
fn uses(package: &Package) -> Uses {
    let sources = sources(package.root);
    let modules: BTreeSet<_> = sources.keys().cloned().collect();
    let module_of = |path: &str| {
        let mut path = path;
        while !modules.contains(path) {
            path = path.rsplit_once("::")?.0;
        }
        Some(path.to_owned())
    };
    let used_by = |(module, source): (String, String)| {
        let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
        let mut used = BTreeSet::new();
        for (keyword, base) in [
            ("crate::", ""),
            ("super::", parent),
            ("self::", module.as_str()),
        ] {
            for (at, _) in source.match_indices(keyword) {
                if source[..at].ends_with(|before: char| {
                    before.is_alphanumeric() || before == '_' || before == ':'
                }) {
                    continue;
                }
                used.extend(
                    paths(&source[at + keyword.len()..])
                        .into_iter()
                        .map(|path| format!("{base}::{path}")),
                );
            }
        }
        let used = used
            .iter()
            .filter_map(|path| module_of(path.trim_start_matches(':')));
        let used = used
            .filter(|used| *used != module && !module.starts_with(&format!("{used}::")))
            .collect();
        (module, used)
    };
    sources.into_iter().map(used_by).collect()
}

/// Returns the sources of a package by module, without comments and tests.
fn sources(folder: &str) -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = BTreeMap::new();
    for path in files(folder, ".rs") {
        let module = path.strip_prefix(folder).unwrap().with_extension("");
        let module = module.to_str().unwrap().replace('/', "::");
        let text = fs::read_to_string(root.join(path)).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let mut text = text.split("#[cfg(all(test, feature = \"test-hooks\"))]\nmod tests");
        let lines = text.next().unwrap().lines();
        let code = |line: &str| line.split("//").next().unwrap().to_owned() + "\n";
        if module != "lib" && module != "main" {
            let module = module.strip_suffix("::mod").unwrap_or(&module);
            sources.insert(module.to_owned(), lines.map(code).collect());
        }
    }
    sources
}

/// Returns the paths that a text stands for: several if it ends with braces.
fn paths(text: &str) -> Vec<String> {
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
        .unwrap_or(text.len());
    let (path, rest) = text.split_at(end);
    match rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        Some((names, _)) => names
            .split(',')
            .map(|name| format!("{path}{}", name.trim()))
            .collect(),
        None => vec![path.to_owned()],
    }
}

fn layer(package: &Package, module: &str) -> usize {
    let (folder, root) = (module.split("::").next().unwrap(), package.root);
    let mut layers = package.layers.iter();
    layers
        .position(|layer| layer.contains(&folder))
        .unwrap_or_else(|| panic!("{root}: {folder} is in no layer"))
}

#[test]
fn folders_use_those_below_them_only() {
    for (package, modules) in [(LIBRARY, 60), (CLI, 50)] {
        let (uses, root) = (uses(&package), package.root);
        assert!(uses.len() > modules, "{root}: {} modules", uses.len());
        for (module, used) in &uses {
            for used in used {
                assert!(
                    layer(&package, used) <= layer(&package, module),
                    "{root}: {module} uses {used}, which is above it"
                );
            }
        }
    }
}

#[test]
fn no_two_files_import_each_other() {
    for package in [LIBRARY, CLI] {
        let mut uses = uses(&package);
        // a module that uses none of the remaining ones is in no circle
        while let Some(free) = uses
            .iter()
            .find(|(_, used)| used.is_empty())
            .map(|(module, _)| module.clone())
        {
            uses.remove(&free);
            for used in uses.values_mut() {
                used.remove(&free);
            }
        }
        assert!(uses.is_empty(), "{}: circles among {uses:#?}", package.root);
    }
}

/// Redis runs the scripts of `lua/v1` and no others, so that programs in any language can.
#[test]
fn rust_contains_no_script() {
    for (module, source) in sources("src") {
        let is_lua = ["redis.call", "redis.pcall"]
            .iter()
            .any(|lua| source.contains(lua));
        assert!(
            !is_lua || module.starts_with("testing"),
            "src/: {module} contains Lua, which belongs to lua/v1"
        );
    }
}

#[test]
fn the_crate_root_has_few_names() {
    let root = include_str!("../../src/lib.rs");
    let names: usize = root
        .split("\npub use ")
        .skip(1)
        .map(|used| used.split(';').next().unwrap())
        .map(|used| match used.split_once('{') {
            Some((_, names)) => names
                .split(',')
                .filter(|name| name.contains(char::is_alphabetic))
                .count(),
            None => 1,
        })
        .sum();
    assert!((30..=50).contains(&names), "{names}");
}
