//! HOUSE test 1, as far as it is about the Lua bundle: every header parses, says what the script's body does, and is
//! what `lua/manifest.json`, the table in `lua/README.md` and the vectors say; what was released stays as it is.
//!
//! `COUNTERFOIL_WRITE_MANIFEST=1` writes the manifest anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value as Json;

type Words = BTreeSet<String>;

/// Upper-case literals that are options of Redis commands, and no part of a reply.
const OPTIONS: [&str; 5] = ["COUNT", "GT", "LIMIT", "LT", "WITHSCORES"];

#[derive(Serialize)]
struct Manifest {
    layout: &'static str,
    bundle: &'static str,
    scripts: Vec<Script>,
}

#[derive(Clone, Serialize)]
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
    #[serde(skip)]
    body: String,
}

#[derive(Clone, Serialize)]
struct Input {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    about: String,
}

#[derive(Clone, Serialize)]
struct Reply {
    status: String,
    shape: String,
    about: String,
}

#[derive(Clone, Serialize)]
struct Code {
    code: String,
    about: String,
}

fn lua() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

fn read(name: &str) -> String {
    fs::read_to_string(lua().join(name)).unwrap_or_else(|e| panic!("lua/{name}: {e}"))
}

fn bundle() -> Vec<Script> {
    let files = fs::read_dir(lua().join("v1")).unwrap().map(|entry| entry.unwrap().path());
    let parse = |path: PathBuf| {
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert_eq!(path.extension().unwrap(), "lua", "{}", path.display());
        parse(&stem, &fs::read_to_string(&path).unwrap()).unwrap_or_else(|wrong| panic!("{stem}: {wrong}"))
    };
    let mut scripts: Vec<_> = files.map(parse).collect();
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    scripts
}

/// Reads a header, which has one form only.
fn parse(stem: &str, source: &str) -> Result<Script, String> {
    let (header, body) = source.split_once("\n\n").ok_or("an empty line must follow the header")?;
    let mut lines = header.lines().map(|line| line.strip_prefix("--").ok_or(format!("not a comment: {line:?}")));
    let mut next = || lines.next().unwrap_or(Err("the header ends early".into()));

    let title = next()?;
    let (name, revision) = title.trim().split_once(", revision ").ok_or("line 1 is not `NAME, revision N`")?;
    if name != stem || title != format!(" {name}, revision {revision}") {
        return Err(format!("line 1 does not name the file: {title:?}"));
    }
    let revision = revision.parse().ok().filter(|&revision| revision > 0).ok_or("the revision is not 1 or more")?;
    let summary = next()?.strip_prefix(' ').filter(|text| text.ends_with('.')).ok_or("line 2 is not a sentence")?;
    if !next()?.is_empty() || next()? != " KEYS" {
        return Err("`--` and `-- KEYS` must follow the summary".into());
    }
    let keys = inputs(&entries(&mut next, " ARGV")?)?;
    check_order(&keys)?;
    let args = inputs(&entries(&mut next, " REPLIES")?)?;
    let replies = entries(&mut next, " ERRORS")?.iter().map(|entry| reply(entry)).collect::<Result<_, _>>()?;
    let mut codes = entries(&mut next, " REPEAT  ")?;
    let repeat_safe = codes.pop().ok_or("no REPEAT")?;
    let code = |entry: &String| {
        let (code, about) = entry.split_once("  ").ok_or(format!("not `CODE  text`: {entry:?}"))?;
        Ok::<_, String>(Code { code: code.into(), about: about.trim().into() })
    };
    let errors = codes.iter().map(code).collect::<Result<_, _>>()?;
    let since = next()?.strip_prefix(" SINCE   ").ok_or("no SINCE")?;
    if next().is_ok() {
        return Err("something stands after SINCE".into());
    }
    Ok(Script {
        name: name.into(),
        file: format!("v1/{name}.lua"),
        revision,
        sha1: sha1_smol::Sha1::from(source).digest().to_string(),
        summary: summary.into(),
        keys,
        args,
        replies,
        errors,
        repeat_safe,
        since: since.into(),
        body: body.into(),
    })
}

/// The entries of a section, continuation lines joined, up to the line that begins with `end`. If that line goes on,
/// the rest of it is the last entry.
fn entries<'a>(next: &mut impl FnMut() -> Result<&'a str, String>, end: &str) -> Result<Vec<String>, String> {
    let mut entries: Vec<String> = Vec::new();
    loop {
        let line = next()?;
        if let Some(rest) = line.strip_prefix(end) {
            entries.extend((!rest.is_empty()).then(|| rest.to_owned()));
            return Ok(entries);
        }
        let text = line.strip_prefix("   ").ok_or(format!("neither an entry nor `--{end}`: {line:?}"))?;
        match (text.strip_prefix(' '), entries.last_mut()) {
            (Some(more), Some(entry)) => *entry = format!("{entry} {}", more.trim_start()),
            (Some(_), None) => return Err(format!("continues nothing: {line:?}")),
            (None, _) => entries.push(text.to_owned()),
        }
        if text.ends_with(' ') {
            return Err(format!("ends with a space: {line:?}"));
        }
    }
}

/// `NUMBER NAME  TYPE  TEXT`, numbered from 1.
fn inputs(entries: &[String]) -> Result<Vec<Input>, String> {
    let input = |(i, entry): (usize, &String)| {
        let (number, rest) = entry.split_once(' ').unwrap_or_default();
        let mut columns = rest.splitn(2, "  ");
        let (name, rest) = (columns.next().unwrap_or_default(), columns.next().unwrap_or_default().trim_start());
        let (kind, about) = rest.split_once("  ").unwrap_or_default();
        if number != (i + 1).to_string() || name.is_empty() || kind.is_empty() || about.is_empty() {
            return Err(format!("not `{} NAME  TYPE  TEXT`: {entry:?}", i + 1));
        }
        Ok(Input { name: name.into(), kind: kind.into(), about: about.trim_start().into() })
    };
    entries.iter().enumerate().map(input).collect()
}

/// A key `NAME...` comes several times, so no other one can follow; a key `[NAME]` may be left out, so it is the last one.
fn check_order(keys: &[Input]) -> Result<(), String> {
    let follows_wrongly = |pair: &[Input]| pair[0].is_optional() || (pair[0].is_repeated() && !pair[1].is_repeated());
    match keys.windows(2).find(|pair| follows_wrongly(pair)) {
        Some(pair) => Err(format!("{} cannot follow {}", pair[1].name, pair[0].name)),
        None => Ok(()),
    }
}

/// `{"STATUS", ...}  TEXT`.
fn reply(entry: &str) -> Result<Reply, String> {
    let wrong = || format!("not `{{\"STATUS\", ...}}  TEXT`: {entry:?}");
    let mut depth = 0;
    let end = entry.char_indices().find(|&(_, c)| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0
    });
    let (shape, about) = entry.split_at(end.ok_or_else(wrong)?.0 + 1);
    let status = shape.strip_prefix("{\"").and_then(|rest| rest.split('"').next()).ok_or_else(wrong)?;
    if !is_word(status) || !about.starts_with("  ") {
        return Err(wrong());
    }
    Ok(Reply { status: status.into(), shape: shape.into(), about: about.trim_start().into() })
}

fn is_word(text: &str) -> bool {
    text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// What a word of a reply begins with: `KEPT:dirty` is the word `KEPT` and a reason.
fn stem(text: &str) -> &str {
    text.split(':').next().unwrap_or_default()
}

/// The string literals of a script, each with the code in front of it up to the last literal; comments are left out.
fn literals(body: &str) -> Vec<(String, String)> {
    let (mut literals, mut code, mut rest) = (Vec::new(), String::new(), body);
    while let Some(at) = rest.find(['\'', '-']) {
        code.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(comment) = rest.strip_prefix("--") {
            rest = comment.find('\n').map_or("", |end| &comment[end..]);
        } else if let Some(literal) = rest.strip_prefix('\'') {
            let end = literal.find('\'').expect("a literal ends on its line");
            assert!(!literal[..end].contains('\n'), "{}", &literal[..end]);
            literals.push((std::mem::take(&mut code), literal[..end].to_owned()));
            rest = &literal[end + 1..];
        } else {
            code.push('-');
            rest = &rest[1..];
        }
    }
    literals
}

impl Input {
    fn is_repeated(&self) -> bool {
        self.name.ends_with("...")
    }

    fn is_optional(&self) -> bool {
        self.name.starts_with('[') && self.name.ends_with(']')
    }
}

impl Script {
    /// What the body checks its keys with: all of them at once, the last one left out where it may be; or, where some come
    /// several times, first those that come once.
    fn check_of_keys(&self) -> String {
        let once: Vec<_> = self.keys.iter().filter(|key| !key.is_repeated()).collect();
        let names: Vec<_> = once.iter().map(|key| format!("'{}'", key.name.trim_matches(['[', ']']))).collect();
        let names = names.join(", ");
        match (once.len(), self.keys.len()) {
            (0, _) => " = tag_of_keys()".into(),
            (some, all) if some < all => format!("for i, kind in ipairs({{ {names} }}) do\n"),
            (_, all) if self.keys[all - 1].is_optional() => {
                let less = all - 1;
                format!("local wrong = bad_key(unpack({{ {names} }}, 1, #KEYS == {all} and {all} or {less}))\n")
            }
            _ => format!("local wrong = bad_key({names})\n"),
        }
    }

    /// The words that a caller may find in a reply, as the header says.
    fn words(&self) -> Words {
        let in_text = self.replies.iter().flat_map(|reply| reply.about.split(|c: char| !c.is_ascii_alphanumeric()));
        let words = in_text.filter(|word| is_word(word)).map(str::to_owned);
        words.chain(self.replies.iter().map(|reply| reply.status.clone())).collect()
    }

    fn codes(&self) -> Words {
        self.errors.iter().map(|error| error.code.clone()).collect()
    }

    /// The words that the body can put into a reply: upper-case literals that are no part of a Redis command.
    fn words_of_body(&self) -> Words {
        let is_command = |code: &str| ["call(", "ask("].iter().any(|call| code.ends_with(call));
        let literals = literals(&self.body).into_iter().filter(|(code, _)| !is_command(code));
        let words = literals.map(|(_, text)| stem(&text).to_owned()).filter(|text| is_word(text));
        words.filter(|text| !OPTIONS.contains(&text.as_str())).collect()
    }

    fn codes_of_body(&self) -> Words {
        let errors = literals(&self.body).into_iter().filter(|(code, _)| code.ends_with("redis.error_reply("));
        let code = |text: String| {
            let (code, _) = text.split_once(' ').unwrap_or_else(|| panic!("{}: one word: {text:?}", self.name));
            code.to_owned()
        };
        errors.map(|(_, text)| code(text)).collect()
    }

    /// The line of the table in the README.
    fn row(&self) -> String {
        let code = |words: Vec<&str>| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" ");
        let keys = code(self.keys.iter().map(|key| key.name.as_str()).collect());
        let args = code(self.args.iter().map(|arg| arg.name.as_str()).collect());
        let replies = code(self.replies.iter().map(|reply| reply.status.as_str()).collect());
        format!("| [`{}`]({}) | {} | {keys} | {args} | {replies} |", self.name, self.file, self.summary)
    }
}

#[test]
fn a_header_says_what_the_body_does() {
    for script in bundle() {
        let name = &script.name;
        assert_eq!(script.words(), script.words_of_body(), "{name}: words of the header, words of the body");
        assert_eq!(script.codes(), script.codes_of_body(), "{name}: errors of the header, errors of the body");

        let check = script.check_of_keys();
        assert!(script.body.contains(&check), "{name}: no {check:?}");
        if let Some((_, rest)) = script.body.split_once("#ARGV ~= ") {
            let number = rest.split(' ').next().unwrap();
            assert_eq!(number, script.args.len().to_string(), "{name}: arguments");
        }
    }
}

#[test]
fn a_wrong_header_is_noticed() {
    let source = read("v1/buffered_fetch.lua");
    assert!(parse("buffered_fetch", &source).is_ok());
    let wrong = [
        ("buffered_fetch, revision 1", "buffered_fech, revision 1"),
        ("revision 1", "revision 0"),
        ("revision 1", "revision one"),
        ("reach the database.", "reach the database"),
        ("-- KEYS", "-- KEY"),
        ("--   2 meta          hash", "--   3 meta          hash"),
        ("--   2 meta          hash      ", "--   2 meta          hash"),
        ("-- REPLIES\n", ""),
        ("--   {\"STALE\"}   ", "--   {\"stale\"}   "),
        ("--   {\"STALE\"}   ", "--   STALE   "),
        ("--   BADKEY                    a key", "--   BADKEY a key"),
        ("-- REPEAT  safe\n", ""),
        ("-- SINCE   0.1.0\n", ""),
        ("-- SINCE   0.1.0\n", "-- SINCE   0.1.0\n-- more\n"),
    ];
    for (right, instead) in wrong {
        assert!(source.contains(right), "{right:?}");
        let result = parse("buffered_fetch", &source.replacen(right, instead, 1));
        assert!(result.is_err(), "{instead:?} instead of {right:?} passes");
    }
    let keys = |first: &str, second: &str| {
        let source = source.replacen("1 batch         hash      ", &format!("1 {first}  hash  "), 1);
        parse("buffered_fetch", &source.replacen("2 meta          hash      ", &format!("2 {second}  hash  "), 1))
    };
    assert!(keys("batch", "[meta]").is_ok() && keys("batch", "meta:ID...").is_ok());
    assert!(keys("batch:ID...", "meta:ID...").is_ok());
    for (first, second) in [("[batch]", "meta"), ("[batch]", "[meta]"), ("batch:ID...", "meta")] {
        assert!(keys(first, second).is_err(), "{second} after {first} passes");
    }
    let script = parse("buffered_fetch", &source.replace("{ 'STALE' }", "{ 'GONE' }")).unwrap();
    assert_ne!(script.words(), script.words_of_body());
    let script = parse("buffered_fetch", &source.replace("--   BADKEY", "--   BADNAME")).unwrap();
    assert_ne!(script.codes(), script.codes_of_body());
}

#[test]
fn lines_fit() {
    for script in bundle() {
        let source = read(&script.file);
        assert!(source.is_ascii() && source.ends_with('\n') && !source.contains(['\t', '\r']), "{}", script.name);
        for (i, line) in source.lines().enumerate() {
            assert!(line.len() <= 120 && !line.ends_with(' '), "{}:{}: {line:?}", script.file, i + 1);
        }
    }
}

/// Helpers repeat, since a script includes nothing; a repeated one is the same everywhere.
#[test]
fn helpers_are_the_same_everywhere() {
    let mut helpers: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut shared = 0;
    for script in bundle() {
        for block in script.body.split("\n\n").filter(|block| block.contains("local function ")) {
            let start = block.find("local function ").unwrap();
            let name = block[start..].split(['(', ' ']).nth(2).unwrap().to_owned();
            let (first, text) = helpers.entry(name.clone()).or_insert((script.name.clone(), block.to_owned()));
            assert_eq!(text, block, "{name} in {} is not as in {first}", script.name);
            shared += usize::from(*first != script.name);
        }
    }
    assert!(shared > 20, "only {shared} repetitions found");
}

#[test]
fn the_manifest_is_up_to_date() {
    let manifest = Manifest { layout: "cf1", bundle: "v1", scripts: bundle() };
    let text = serde_json::to_string_pretty(&manifest).unwrap() + "\n";
    if std::env::var_os("COUNTERFOIL_WRITE_MANIFEST").is_some_and(|value| value == "1") {
        fs::write(lua().join("manifest.json"), text).unwrap();
    } else {
        let same = read("manifest.json") == text;
        assert!(same, "lua/manifest.json is not what the headers say: COUNTERFOIL_WRITE_MANIFEST=1 writes it anew");
    }
}

#[test]
fn the_readme_has_a_row_for_every_script() {
    let readme = read("README.md");
    for script in bundle() {
        let rows: Vec<_> = readme.lines().filter(|line| line.starts_with(&format!("| [`{}`]", script.name))).collect();
        assert_eq!(rows, [script.row()], "the row of {} in lua/README.md", script.name);
    }
}

/// The strings of a reply, also of arrays within it, and of what is repeated there.
fn strings(reply: &Json) -> Vec<&str> {
    match reply {
        Json::String(text) => vec![text],
        Json::Array(items) => items.iter().flat_map(strings).collect(),
        Json::Object(item) => item.get("of").map(strings).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// The words that a script's vectors expect: statuses, words in place of a value, errors.
fn expected(script: &str) -> Words {
    let vectors: Json = serde_json::from_str(&read(&format!("vectors/{script}.json"))).unwrap();
    assert_eq!(vectors["script"], script);
    let mut words = Words::new();
    let mut ids = Words::new();
    for case in vectors["cases"].as_array().unwrap() {
        let id = case["id"].as_str().unwrap();
        assert!(id.starts_with(&format!("{script}/")) && ids.insert(id.into()), "{id} is misnamed or there twice");
        assert!(case["why"].as_str().unwrap().ends_with('.'), "{id} does not say why");
        let own = case["calls"].as_array().unwrap().iter().filter(|call| call["script"].is_null());
        for call in own {
            words.extend(strings(&call["reply"]).into_iter().map(stem).filter(|item| is_word(item)).map(str::to_owned));
            let error = call["reply"]["error"].as_str().and_then(|error| error.split(' ').next());
            words.extend(error.map(str::to_owned));
        }
    }
    words
}

#[test]
fn vectors_cover_every_word() {
    let scripts = bundle();
    for script in &scripts {
        let header = script.words().union(&script.codes()).cloned().collect::<Words>();
        assert_eq!(expected(&script.name), header, "{}: words in the vectors, words in the header", script.name);
    }
    let files = fs::read_dir(lua().join("vectors")).unwrap().count();
    assert_eq!(files, scripts.len(), "one file of vectors a script");
}

/// Checks a bundle against the lock: `sha1  name  revision  version` a line.
fn check_lock(lock: &str, scripts: &[Script]) -> Result<(), String> {
    let mut released = BTreeMap::new();
    for line in lock.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let columns: Vec<_> = line.split("  ").collect();
        let [sha1, name, revision, version] = columns[..] else { return Err(format!("not four columns: {line:?}")) };
        let is_sha1 =
            sha1.len() == 40 && sha1.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase());
        let revision: u32 = revision.parse().map_err(|_| format!("no revision: {line:?}"))?;
        if !is_sha1 || version.split('.').count() != 3 {
            return Err(format!("no sha1 or no version: {line:?}"));
        }
        if released.insert((name, revision), sha1).is_some() {
            return Err(format!("{name}, revision {revision} was released twice"));
        }
    }
    for (&(name, revision), &sha1) in &released {
        let script = scripts.iter().find(|script| script.name == name);
        let script = script.ok_or(format!("{name} was released and is gone"))?;
        if script.revision < revision {
            return Err(format!("{name}: revision {revision} was released, this is {}", script.revision));
        }
        if script.revision == revision && script.sha1 != sha1 {
            return Err(format!("{name} was released as revision {revision}: changed bytes need a new revision"));
        }
    }
    Ok(())
}

#[test]
fn what_was_released_is_unchanged() {
    check_lock(&read("released.lock"), &bundle()).unwrap();
}

#[test]
fn a_change_to_what_was_released_is_noticed() {
    let scripts = bundle();
    let script = &scripts[0];
    let line = |sha1: &str, name: &str, revision: u32| format!("{sha1}  {name}  {revision}  0.1.0\n");
    let (sha1, name) = (script.sha1.as_str(), script.name.as_str());
    let other = "0123456789abcdef0123456789abcdef01234567";
    let comment = "# sha1  name  revision  version\n\n".to_owned();

    assert_eq!(check_lock(&(comment + &line(sha1, name, script.revision)), &scripts), Ok(()));
    let refused = |lock: &str| check_lock(lock, &scripts).expect_err(lock);
    assert!(refused(&line(other, name, script.revision)).contains("need a new revision"));
    assert!(refused(&line(other, name, script.revision + 1)).contains("this is"));
    assert!(refused(&line(sha1, "buffered_gone", 1)).contains("is gone"));
    assert!(refused(&line(sha1, name, 1).repeat(2)).contains("twice"));
    assert!(refused(&line(&sha1[1..], name, 1)).contains("no sha1"));
    assert!(refused(&format!("{sha1} {name} 1 0.1.0\n")).contains("four columns"));

    // a new revision may have new bytes
    let mut changed = script.clone();
    (changed.revision, changed.sha1) = (script.revision + 1, other.into());
    assert_eq!(check_lock(&line(sha1, name, script.revision), &[changed]), Ok(()));
}
