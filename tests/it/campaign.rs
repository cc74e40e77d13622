//! The figure of the campaign: README and docs/testing.md say what the runs in docs/campaign came to.

use crate::support::*;

#[path = "../../examples/demo/campaign/results.rs"]
#[expect(dead_code, reason = "this test reads results and writes none")]
mod results;

use results::{Outcome, Run, figure, tables};

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

#[test]
fn documents_have_what_the_runs_came_to() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/campaign");
    let runs = Run::read_all(&folder).unwrap();
    // lines of documents are broken elsewhere
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (readme, testing) = (words(&read("README.md")), words(&read("docs/testing.md")));
    let advice = "`./dev demo campaign --table` prints what belongs there";
    assert!(
        readme.contains(&words(&figure(&runs))),
        "README.md: {advice}"
    );
    for table in tables(&runs).split("\n\n") {
        assert!(
            testing.contains(&words(table)),
            "docs/testing.md: {advice}: {table}"
        );
    }
}

#[test]
fn a_run_without_each_guard_was_not_exact() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/campaign");
    let mut runs = Run::read_all(&folder).unwrap();
    runs.retain(|run| !run.rounds.iter().all(Outcome::is_exact));
    let source = read("src/testing/ablation.rs");
    let (_, guards) = source.split_once("pub enum Guard {").unwrap();
    let (guards, _) = guards.split_once('}').unwrap();
    let guards = guards
        .lines()
        .filter_map(|line| line.trim().strip_suffix(','));
    let mut number = 0;
    for guard in guards.filter(|guard| !guard.contains(' ')) {
        let is_its = |run: &Run| run.without.as_deref() == Some(guard);
        assert!(runs.iter().any(is_its), "no run without {guard}");
        number += 1;
    }
    assert!(number > 30, "{number} guards");
}
