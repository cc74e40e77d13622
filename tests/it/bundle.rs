//! The lint of the Lua bundle. Every header parses and matches its script, and scripts derive no
//! keys. `lua/manifest.json`, `lua/README.md` and the vectors are complete, and released
//! scripts stay unchanged. luacheck, which `./dev lint` runs, checks the rest.
//!
//! `COUNTERFOIL_WRITE_MANIFEST=1` rewrites the manifest.

use serde::Serialize;
use serde_json::Value as Json;

use crate::docs::files;
use crate::support::kinds::{self};
use crate::vectors::{FENCED, lua};

use crate::support::*;

/// The upper-case words of replies, and the codes of errors.
type Words = (BTreeSet<String>, BTreeSet<String>);

/// Upper-case literals that are options of Redis commands and not part of a reply.
const OPTIONS: [&str; 7] = ["COUNT", "GT", "LIMIT", "LT", "MATCH", "WITHSCORES", "XX"];

/// The first and the last line of the fence, which all counting scripts share.
const FENCE: [&str; 2] = [
    "-- the fence, word for word the same in each counting script",
    "return { 'PASSED' } end\n",
];

/// The first and the last line of what the scripts with requests share.
const REQUESTS: [&str; 2] = [
    "-- the requests, word for word the same in both scripts",
    "\n    end\n  end\nend\n",
];

#[derive(Serialize)]
struct Manifest {
    layout: &'static str,
    bundle: &'static str,
    scripts: Vec<Script>,
}

#[derive(Serialize)]
struct Script {
    name: String,
    file: String,
    revision: u32,
    sha1: String,
    summary: String,
    keys: Vec<Input>,
    args: Vec<Input>,
    replies: Vec<Reply>,
    errors: Vec<Code>,
    repeat_safe: String,
    since: String,
    /// The function that calls the script, and its file.
    #[serde(skip)]
    caller: String,
    #[serde(skip)]
    vectors: String,
    #[serde(skip)]
    source: String,
}

#[derive(Serialize)]
struct Input {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    about: String,
}

#[derive(Serialize)]
struct Reply {
    status: String,
    shape: String,
    about: String,
}

#[derive(Serialize)]
struct Code {
    code: String,
    about: String,
}

fn read(name: &str) -> String {
    fs::read_to_string(lua().join(name)).unwrap_or_else(|e| panic!("lua/{name}: {e}"))
}

fn bundle() -> Vec<Script> {
    let files = fs::read_dir(lua().join("v1"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let parse = |path: PathBuf| {
        println!("{}", path.display());
        let stem = path.file_stem().unwrap().to_str().unwrap();
        assert_eq!(path.extension().unwrap(), "lua");
        parse(stem, fs::read_to_string(&path).unwrap())
    };
    let mut scripts: Vec<_> = files.map(parse).collect();
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    scripts
}

fn cut<'a>(text: &'a str, mark: &str) -> (&'a str, &'a str) {
    let parts = text.split_once(mark);
    parts.unwrap_or_else(|| panic!("no {mark:?} where it is due: {text:.80?}"))
}

/// Parses a header, which has a fixed form.
fn parse(stem: &str, source: String) -> Script {
    let (header, _) = cut(&source, "\n\n");
    let (title, rest) = cut(header, "\n-- ");
    let (summary, rest) = cut(rest, "\n--\n-- KEYS\n");
    let (keys, rest) = cut(rest, "-- ARGV\n");
    let (args, rest) = cut(rest, "-- REPLIES\n");
    let (replies, rest) = cut(rest, "-- ERRORS\n");
    let (errors, rest) = cut(rest, "-- REPEAT  ");
    let (repeat, rest) = cut(rest, "\n-- SINCE   ");
    let (since, rest) = cut(rest, "\n-- CALLER  ");
    let (caller, vectors) = cut(rest, "\n-- VECTORS ");

    let (start, revision) = cut(title, ", revision ");
    let revision: u32 = revision.parse().unwrap();
    assert!(start == format!("-- {stem}") && revision > 0, "{title}");
    // one sentence on one line, and nothing behind VECTORS
    assert!(
        !summary.contains('\n') && summary.ends_with('.'),
        "{summary}"
    );
    for line in [since, caller, vectors] {
        assert!(!line.contains('\n'), "{line}");
    }
    let reply = |entry: &String| {
        let [shape, about] = columns(entry);
        let status = shape.split('"').nth(1).unwrap_or_default().to_owned();
        assert!(shape.starts_with("{\"") && is_word(&status), "{entry:?}");
        Reply {
            status,
            shape,
            about,
        }
    };
    let error = |entry: &String| {
        let [code, about] = columns(entry);
        Code { code, about }
    };
    Script {
        name: stem.into(),
        file: format!("v1/{stem}.lua"),
        revision,
        sha1: sha1_smol::Sha1::from(&source).digest().to_string(),
        summary: summary.into(),
        keys: inputs(keys),
        args: inputs(args),
        replies: entries(replies).iter().map(reply).collect(),
        errors: entries(errors).iter().map(error).collect(),
        repeat_safe: entries(&format!("--   {repeat}")).concat(),
        since: since.into(),
        caller: caller.into(),
        vectors: vectors.into(),
        source,
    }
}

/// Returns the entries of a section, with continuation lines joined.
fn entries(section: &str) -> Vec<String> {
    let mut entries: Vec<String> = Vec::new();
    for line in section.lines() {
        let text = line.strip_prefix("--   ");
        let text = text.unwrap_or_else(|| panic!("no entry: {line:?}"));
        match text.strip_prefix(' ') {
            None => entries.push(text.to_owned()),
            Some(more) => {
                let entry = entries.last_mut().expect("an entry to continue");
                *entry = format!("{entry} {}", more.trim_start());
            }
        }
    }
    entries
}

/// Returns the columns of an entry, separated by two or more spaces.
fn columns<const N: usize>(entry: &str) -> [String; N] {
    let columns = entry.split("  ").map(str::trim);
    let columns = columns.filter(|column| !column.is_empty());
    let columns: Vec<_> = columns.map(str::to_owned).collect();
    let columns = columns.try_into();
    columns.unwrap_or_else(|_| panic!("not {N} columns: {entry:?}"))
}

/// Parses entries of the form `NUMBER NAME  TYPE  TEXT`, numbered from 1.
fn inputs(section: &str) -> Vec<Input> {
    let input = |(i, entry): (usize, &String)| {
        let [name, kind, about] = columns(entry);
        let name = name.strip_prefix(&format!("{} ", i + 1)).expect(entry);
        Input {
            name: name.into(),
            kind,
            about,
        }
    };
    entries(section).iter().enumerate().map(input).collect()
}

fn is_word(text: &str) -> bool {
    text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Returns the part before the colon: `KEPT:dirty` is the word `KEPT` and a reason.
fn stem(text: &str) -> &str {
    text.split(':').next().unwrap_or_default()
}

fn owned<'a>(words: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    words.into_iter().map(str::to_owned).collect()
}

impl Script {
    /// Returns the words that a caller may find in a reply, according to the header.
    fn words_of_header(&self) -> Words {
        let in_text = self
            .replies
            .iter()
            .flat_map(|reply| reply.about.split(|c: char| !c.is_ascii_alphanumeric()));
        let statuses = self.replies.iter().map(|reply| reply.status.as_str());
        let codes = self.errors.iter().map(|error| error.code.as_str());
        (
            owned(in_text.filter(|word| is_word(word)).chain(statuses)),
            owned(codes),
        )
    }

    /// Returns the words that the body can put into a reply: upper-case literals outside of Redis
    /// commands.
    fn words_of_body(&self) -> Words {
        let (mut words, mut codes) = (Vec::new(), Vec::new());
        for line in self.code() {
            let parts: Vec<_> = line.split('\'').collect();
            assert!(
                parts.len() % 2 == 1,
                "{}: a literal does not end on its line: {line}",
                self.name
            );
            for pair in parts.chunks_exact(2) {
                let (before, literal) = (pair[0], stem(pair[1]));
                if before.ends_with("redis.error_reply(") {
                    codes.push(
                        literal
                            .split_once(' ')
                            .map_or("an error of one word", |(code, _)| code),
                    );
                } else if is_word(literal)
                    && !before.ends_with("call(")
                    && !OPTIONS.contains(&literal)
                {
                    words.push(literal);
                }
            }
        }
        (owned(words), owned(codes))
    }

    /// Returns the body's lines of code, without comments.
    fn code(&self) -> Vec<&str> {
        let (_, body) = self.source.split_once("\n\n").unwrap();
        let lines = body
            .lines()
            .map(|line| line.split("--").next().unwrap().trim_end());
        lines.filter(|line| !line.is_empty()).collect()
    }

    /// Returns the fence, from its comment to its last line; `None` for a script that does not
    /// count.
    fn fence(&self) -> Option<&str> {
        self.between(FENCE)
    }

    /// Returns the part from its first to its last line.
    fn between(&self, [first, last]: [&str; 2]) -> Option<&str> {
        let from = &self.source[self.source.find(first)?..];
        Some(&from[..from.find(last)? + last.len()])
    }

    /// Returns the faults of this script.
    fn faults(&self) -> Vec<String> {
        let (code, mut faults) = (self.code().join("\n"), Vec::new());
        let (header, body) = (self.words_of_header(), self.words_of_body());
        let other = if self.name == "family_epoch" {
            "BADKEY"
        } else {
            "BADSTATE"
        };
        if header != body {
            faults.push(format!("{header:?} in the header, {body:?} in the body"));
        }
        if !header.1.contains("BADARG")
            || header
                .1
                .iter()
                .any(|code| code != "BADARG" && code != other)
        {
            faults.push(format!(
                "errors {:?}, expected BADARG, and {other} at most",
                header.1
            ));
        }
        let counts =
            self.keys.iter().any(|key| key.name == "calls_before") && self.name != "family_epoch";
        if counts != self.fence().is_some() {
            faults.push("the fence is missing, or where nothing is counted".into());
        }
        for (list, most) in [("KEYS[", self.keys.len()), ("ARGV[", self.args.len())] {
            let indices = code
                .split(list)
                .skip(1)
                .filter_map(|rest| rest.split(']').next()?.parse().ok());
            faults.extend(
                indices
                    .filter(|&i: &usize| i > most)
                    .map(|i| format!("{list}{i}] is not in the header")),
            );
        }

        // a cluster must see all keys of a call: no key is derived, and commands take keys
        // unchanged
        let mut after_keys = code
            .split("KEYS[")
            .skip(1)
            .filter_map(|rest| rest.split(']').nth(1));
        let is_made = code.contains("cf1:")
            || after_keys.any(|rest| rest.trim_start().starts_with([':', '.']));
        if is_made && !self.name.starts_with("family_") {
            faults.push("something is made of a key".into());
        }
        for call in code.split("call(").skip(1) {
            let (command, rest) = call.split_once(',').unwrap_or((call, ""));
            let key = rest
                .trim_start()
                .trim_start_matches("unpack(")
                .split([',', ')'])
                .next()
                .unwrap();
            let is_part = |part: &str| !part.is_empty() && part.chars().all(char::is_alphanumeric);
            let is_key = key.starts_with("KEYS[") || key.split(['.', '_']).all(is_part);
            let is_good = command.starts_with("'TIME'") || (command.starts_with('\'') && is_key);
            // the caller of family_try names the commands
            if !is_good && self.name != "family_try" {
                faults.push(format!("{command} is called with the key {key}"));
            }
        }
        faults
    }
}

#[test]
fn headers_and_scripts_match() {
    let faults = |script: Script| {
        script
            .faults()
            .into_iter()
            .map(move |fault| format!("{}: {fault}", script.file))
    };
    let faults: Vec<_> = bundle().into_iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn headers_name_the_caller_and_the_vectors() {
    for script in bundle() {
        let name = &script.name;
        let (caller, file) = cut(&script.caller, " in ");
        let function = caller.rsplit("::").next().unwrap_or_default();
        let source = read(&format!("../{file}"));
        let mut beginnings = ["(", "<"]
            .map(|next| format!("fn {function}{next}"))
            .into_iter();
        let has_function = beginnings.any(|beginning| source.contains(&beginning));
        assert!(
            has_function && source.contains(&format!("\"{name}\"")),
            "{file} has no function {function}, or does not call {name}"
        );
        assert_eq!(script.vectors, format!("lua/vectors/{name}.json"));
        let vectors = read(&format!("../{}", script.vectors));
        let line = format!("\"script\": \"{name}\"");
        assert!(vectors.contains(&line), "{}: no {line}", script.vectors);
    }
}

#[test]
fn the_fence_is_the_same_in_every_counting_script() {
    let scripts = bundle();
    let fences = scripts.iter();
    let fences = fences.filter_map(|script| Some((&*script.name, script.fence()?)));
    let fences: Vec<_> = fences.collect();
    let names: BTreeSet<_> = fences.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, FENCED.into());
    for (name, fence) in &fences {
        assert_eq!(
            fence, &fences[0].1,
            "the fence of {name} is another one than that of {}",
            fences[0].0
        );
    }
}

#[test]
fn the_requests_are_the_same_in_both_scripts() {
    let scripts = bundle();
    let parts = scripts.iter().filter_map(|script| script.between(REQUESTS));
    let parts: Vec<_> = parts.collect();
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[0], parts[1]);
}

#[test]
fn the_manifest_is_up_to_date() {
    let manifest = Manifest {
        layout: "cf1",
        bundle: "v1",
        scripts: bundle(),
    };
    let text = serde_json::to_string_pretty(&manifest).unwrap() + "\n";
    if std::env::var_os("COUNTERFOIL_WRITE_MANIFEST").is_some_and(|value| value == "1") {
        fs::write(lua().join("manifest.json"), text).unwrap();
    } else {
        let same = read("manifest.json") == text;
        assert!(
            same,
            "lua/manifest.json does not match the headers: COUNTERFOIL_WRITE_MANIFEST=1 writes it anew"
        );
    }
}

#[test]
fn the_readme_links_every_counting_script() {
    let readme = read("README.md");
    for Script {
        name, file, keys, ..
    } in bundle()
    {
        let counts = keys.iter().any(|key| key.name == "calls_before") && name != "family_epoch";
        let is_linked = readme.contains(&format!("[`{name}`]({file})"));
        assert!(is_linked || !counts, "lua/README.md does not link {name}");
    }
}

#[test]
fn the_readme_names_all_that_a_client_needs_of_a_family() {
    let readme = read("README.md");
    for kind in KINDS {
        let description = counterfoil::test_hooks::description(&kinds::family(kind));
        let description: Json = serde_json::from_str(&description).unwrap();
        for name in description.as_object().unwrap().keys() {
            let is_named = readme.contains(&format!("`{name}`"));
            assert!(is_named, "{kind}: lua/README.md does not name {name}");
        }
    }
}

/// Returns the ACL rules that a document contains.
fn documented_rules(text: &str) -> String {
    let mut lines = text.lines().map(str::trim_start);
    let rules = lines.find(|line| line.starts_with("~cf1:{"));
    rules.expect("a line of rules").to_owned()
}

/// Returns the quoted text after each occurrence of `before`.
fn quoted_after<'a>(text: &'a str, before: &str, quote: char) -> impl Iterator<Item = &'a str> {
    text.split(before)
        .skip(1)
        .filter_map(move |rest| rest.trim_start().strip_prefix(quote)?.split(quote).next())
}

/// Returns the commands that the crate's sources send directly.
fn commands_of_the_crate() -> BTreeSet<String> {
    let mut commands = BTreeSet::new();
    for source in files("src", ".rs") {
        let source = fs::read_to_string(lua().join("..").join(source)).unwrap();
        for before in ["cmd(", "command(", "command.arg("] {
            commands.extend(quoted_after(&source, before, '"').map(str::to_lowercase));
        }
    }
    commands
}

/// Commands that a user of Redis does not need. `check` reads a setting, a client leaves with QUIT
/// and PING, and Sentinels are servers of their own.
const OPTIONAL: [&str; 4] = ["config", "ping", "quit", "sentinel"];

#[test]
fn the_documented_rules_are_those_that_are_needed() {
    let scripts = bundle();
    let in_scripts = scripts.iter();
    let in_scripts = in_scripts.flat_map(|script| quoted_after(&script.source, "call(", '\''));
    let in_scripts = in_scripts.map(str::to_lowercase);
    let commands: BTreeSet<_> = in_scripts.chain(commands_of_the_crate()).collect();
    for known in ["eval", "evalsha", "info", "hscan", "srem"] {
        assert!(commands.contains(known), "no {known} in {commands:?}");
    }
    let needed = commands.iter().map(String::as_str);
    let needed = needed.filter(|command| !OPTIONAL.contains(command));
    let needed: Vec<_> = needed.map(|name| format!("+{name}")).collect();
    let mut of_crate = acl_rules(&KINDS.map(kinds::family), Role::Reconciler);
    of_crate.retain(|rule| rule.starts_with('+'));
    assert_eq!(of_crate, needed, "the crate has other rules");
    let rules = format!(
        "~cf1:{{NAMESPACE/* ~cf1:kept ~cf1:wanted {}",
        needed.join(" ")
    );
    for file in ["README.md", "../docs/operations.md"] {
        let documented = documented_rules(&read(file));
        assert_eq!(documented, rules, "lua/{file} has other rules");
    }
}

/// Returns the strings of a reply, including those of nested arrays and repeated items.
fn strings(reply: &Json) -> Vec<&str> {
    match reply {
        Json::String(text) => vec![text],
        Json::Array(items) => items.iter().flat_map(strings).collect(),
        Json::Object(item) => item.get("of").map(strings).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Returns the words that a script's vectors expect.
fn words_of_vectors(script: &str) -> Words {
    let vectors: Json = serde_json::from_str(&read(&format!("vectors/{script}.json"))).unwrap();
    assert_eq!(vectors["script"], script);
    let (mut words, mut codes, mut ids) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for case in vectors["cases"].as_array().unwrap() {
        let id = case["id"].as_str().unwrap();
        assert!(
            id.starts_with(&format!("{script}/")) && ids.insert(id),
            "{id} is misnamed or there twice"
        );
        assert!(
            case["why"].as_str().unwrap().ends_with('.'),
            "{id} does not tell why"
        );
        for call in case["calls"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|call| call["script"].is_null())
        {
            words.extend(
                strings(&call["reply"])
                    .into_iter()
                    .map(stem)
                    .filter(|item| is_word(item)),
            );
            codes.extend(
                call["reply"]["error"]
                    .as_str()
                    .and_then(|error| error.split(' ').next()),
            );
        }
    }
    (owned(words), owned(codes))
}

#[test]
fn vectors_cover_every_word() {
    let (scripts, mut wrong) = (bundle(), Vec::new());
    for script in &scripts {
        let (mut header, vectors) = (script.words_of_header(), words_of_vectors(&script.name));
        // Redis's own error for a key of another type, which EXISTS does not mind, and which tells
        // family_try that the user may execute the command
        if !["family_exists", "family_try"].contains(&&*script.name) {
            header.1.insert("WRONGTYPE".into());
        }
        if vectors != header {
            wrong.push(format!(
                "{}: {vectors:?} in the vectors, {header:?} in the header",
                script.name
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let files = fs::read_dir(lua().join("vectors")).unwrap().count();
    assert_eq!(files, scripts.len(), "one file of vectors a script");
}

/// Each line of the lock is `sha1  name  revision  version`. A released script is never gone, and a
/// changed one has a later revision.
#[test]
fn what_was_released_is_unchanged() {
    let scripts = bundle();
    let lock = read("released.lock");
    let released = lock.lines().filter(|line| !line.starts_with('#'));
    for line in released {
        let [sha1, name, revision, _] = columns(line);
        let script = scripts.iter().find(|script| script.name == name);
        let script = script.expect(line);
        let revision: u32 = revision.parse().expect(line);
        let is_kept =
            script.revision > revision || (script.revision, &script.sha1) == (revision, &sha1);
        assert!(is_kept, "changed bytes need a new revision: {line}");
    }
}
