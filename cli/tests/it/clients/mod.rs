//! The client packages in other languages: each is installed from its artifact, and plays the
//! scenarios of `clients/scenarios` on real servers. `clients/README.md` describes both.

mod guards;
mod language;
mod play;
mod scenario;
mod stage;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use futures_util::future::join_all;
use testkit::{Certificates, RedisOptions, RedisServer};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use self::guards::Guard;
use self::language::{
    GO, Language, Library, NODE, PHP, PYTHON, RUBY, RUST, STAND_IN, run, scripts,
};
use self::play::{Play, Trouble};
use self::scenario::{Need, Scenario};
use self::stage::{Namespaces, Stage, family_names};

/// The namespace of a package's own tests.
const OWN: &str = "own";
/// The family in which the programs of READMEs count.
const NAMESPACE_OF_READMES: &str = "shop";
const FAMILY_OF_READMES: &str = "product_views";

/// The longest time for the tests of a package, in seconds.
const LONGEST_TESTS: &str = "400";

/// Set for long runs.
const LONG: &str = "COUNTERFOIL_LONG";

/// The number of stages on which a package plays at a time, besides the cluster.
const STAGES: usize = 2;

/// The shared cluster is used by one package at a time: nodes take each other for dead on a busy
/// machine.
static CLUSTER: Semaphore = Semaphore::const_new(1);

/// The outcome of each scenario.
type Results = BTreeMap<String, Result<(), Trouble>>;

/// Plays scenarios with one library, on one stage.
async fn play(
    language: &Language,
    library: &Library,
    installed: &Path,
    scenarios: &[Scenario],
    stage: &Stage,
) -> Results {
    let (seed, mut results, mut played) = (testkit::seed(), Results::new(), vec![]);
    for scenario in scenarios {
        let play = Play {
            stage,
            language,
            library,
            installed,
            scenario,
            namespace: namespace(scenario, library),
            seed,
        };
        let played_to_the_end = play.play().await;
        stage.recover().await;
        match played_to_the_end {
            Ok(tally) => played.push((play, tally)),
            Err(trouble) => {
                // it may leave what the save below fails at
                if let Trouble::Failed(problem) = &trouble {
                    let package = installed.file_name().unwrap_or_default().display();
                    eprintln!("{package} {} {}: {problem}", library.name, scenario.name);
                }
                results.insert(scenario.name.clone(), Err(trouble));
            }
        }
    }
    stage.save().await;
    for (play, tally) in played {
        let checked = play.check_mysql(&tally).await.map_err(Trouble::Failed);
        results.insert(play.scenario.name.clone(), checked);
    }
    results
}

/// Plays the scenarios that need no servers with the package's stand-in in memory.
async fn play_in_memory(language: &Language, installed: &Path) -> Results {
    let mut results = Results::new();
    if language.package.0 == RUST.package.0 {
        return results; // whose stand-in is `counterfoil::testing`
    }
    for scenario in Scenario::all().iter().filter(|one| one.is_of_calls()) {
        let played = play::in_memory(language, installed, scenario).await;
        results.insert(scenario.name.clone(), played);
    }
    results
}

/// Plays all scenarios with all libraries of a package. Returns what came of each.
async fn play_all(language: &Language, installed: &Path) -> Vec<Results> {
    let (of_cluster, of_server): (Vec<_>, Vec<_>) = Scenario::all()
        .into_iter()
        .partition(|scenario| scenario.needs.contains(&Need::Cluster));
    let libraries = language.libraries.iter();
    let parts = STAGES.div_ceil(language.libraries.len());
    let on_servers = join_all(libraries.clone().map(async |library| {
        let parts = of_server.chunks(of_server.len().div_ceil(parts).max(1));
        let played = parts.map(async |some| {
            let stage = Stage::single(namespaces(some, std::slice::from_ref(library))).await;
            play(language, library, installed, some, &stage).await
        });
        let played = join_all(played).await.into_iter();
        played.flatten().collect::<Results>()
    }));
    let on_cluster = async {
        let _permit = CLUSTER.acquire().await.expect("it is never closed");
        let stage = Stage::cluster(namespaces(&of_cluster, language.libraries)).await;
        let mut results = vec![];
        for library in libraries {
            results.push(play(language, library, installed, &of_cluster, &stage).await);
        }
        results
    };
    let (mut all, on_cluster) = tokio::join!(on_servers, on_cluster);
    all.iter_mut()
        .zip(on_cluster)
        .for_each(|(results, more)| results.extend(more));
    all
}

fn namespace(scenario: &Scenario, library: &Library) -> String {
    format!("{}-{}", scenario.name, library.name)
}

/// Returns the families that scenarios count in, by namespace.
fn namespaces(scenarios: &[Scenario], libraries: &[Library]) -> Namespaces {
    let of_library = |library| {
        let scenarios = scenarios.iter();
        scenarios.map(move |one| (namespace(one, library), one.families()))
    };
    libraries.iter().flat_map(of_library).collect()
}

/// Prints what came of the scenarios. Returns the failures.
fn report(language: &Language, library: &Library, results: &Results) -> Vec<String> {
    let (mut failed, mut skipped, mut passed) = (vec![], vec![], 0);
    for (scenario, result) in results {
        match result {
            Ok(()) => passed += 1,
            Err(Trouble::Skipped(reason)) => {
                skipped.push(format!("  {scenario} is skipped: {reason}"))
            }
            Err(Trouble::Failed(problem)) => failed.push(format!("  {scenario}: {problem}")),
        }
    }
    println!(
        "{} {}: {passed} scenarios passed, {} failed, {} skipped",
        language.package.0,
        library.name,
        failed.len(),
        skipped.len()
    );
    skipped.iter().for_each(|line| println!("{line}"));
    failed
}

/// Installs a package, compares its scripts, plays the scenarios with each of its libraries and
/// without each of its guards, and runs its own tests.
async fn try_package(language: &Language) {
    let installed = match language.package.install() {
        Ok(installed) => installed,
        Err(reason) => return eprintln!("{} is skipped: {reason}", language.package.0),
    };
    compare_scripts(language, &installed);
    let (played, in_memory, own, unguarded) = tokio::join!(
        play_all(language, &installed),
        play_in_memory(language, &installed),
        run_own_tests(language, &installed),
        remove_guards(language, &installed)
    );
    let libraries = language.libraries.iter().zip(&played);
    let played = libraries.map(|(library, results)| report(language, library, results));
    let in_memory = report(language, &STAND_IN, &in_memory);
    let failed = played.flatten().chain(in_memory);
    let failed: Vec<_> = failed.chain(own.err()).chain(unguarded).collect();
    assert!(
        failed.is_empty(),
        "{} failed:\n{}",
        language.package.0,
        failed.join("\n")
    );
}

/// Plays the scenarios of each guard with a package that lacks it, in a long run. Returns the guards
/// without which they pass.
async fn remove_guards(language: &Language, installed: &Path) -> Vec<String> {
    let guards = Guard::all(language.package);
    if Scenario::are_selected() || std::env::var_os(LONG).is_none() {
        guards
            .iter()
            .for_each(|guard| drop(guard.removed(language.package)));
        return vec![];
    }
    let failures = guards
        .iter()
        .map(|guard| play_without(guard, language, installed));
    let failures = join_all(failures).await;
    let unneeded = guards
        .iter()
        .zip(failures)
        .filter(|(_, failed)| *failed == 0);
    let unneeded =
        unneeded.map(|(guard, _)| format!("  all pass without the guard {}", guard.guard));
    unneeded.collect()
}

/// Plays the scenarios of a guard with a package that lacks it. Returns how many fail.
async fn play_without(guard: &Guard, language: &Language, installed: &Path) -> usize {
    let (package, library) = (language.package, &language.libraries[0]);
    let (without, whole) = (guard.clone(), installed.to_owned());
    let installed = spawn_blocking(move || without.install_without(package, &whole)).await;
    let installed = installed.expect("installed");
    let mut scenarios = Scenario::all();
    scenarios.retain(|scenario| scenario.guards.contains(&guard.guard));
    let stage = Stage::single(namespaces(&scenarios, std::slice::from_ref(library))).await;
    let results = play(language, library, &installed, &scenarios, &stage).await;
    let failed = |result: &&Result<(), Trouble>| matches!(result, Err(Trouble::Failed(_)));
    let failed = results.values().filter(failed).count();
    println!(
        "{} without the guard {}: {failed} scenarios failed",
        package.0, guard.guard
    );
    failed
}

/// Compares the scripts of the installed package with those of the repository.
fn compare_scripts(language: &Language, installed: &Path) {
    let scripts = scripts(language.package, installed);
    for script in counterfoil::admin::Script::all() {
        let path = scripts.join(format!("{}.lua", script.name));
        let shipped = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(
            shipped == script.source.as_bytes(),
            "{} differs",
            path.display()
        );
    }
}

/// Runs the package's own tests, and the programs of the READMEs. Returns what they print if they
/// fail.
async fn run_own_tests(language: &Language, installed: &Path) -> Result<(), String> {
    let families = BTreeSet::from([FAMILY_OF_READMES.to_owned()]);
    let namespaces = [(OWN, family_names()), (NAMESPACE_OF_READMES, families)];
    let namespaces = namespaces.map(|(namespace, families)| (namespace.to_owned(), families));
    let stage = Stage::single(namespaces.into()).await;
    stage.configured(OWN).await;
    stage.configured(NAMESPACE_OF_READMES).await;
    let certificates = Certificates::issue();
    let tls = RedisOptions::volatile().tls(&certificates);
    let tls = RedisServer::start(tls.arg("tls-auth-clients", "no")).await;
    let mut tests = language.package.dev("tests", installed);
    tests
        .env("COUNTERFOIL_TEST_SOCKET", stage.site.redis.socket())
        .env("COUNTERFOIL_TEST_NAMESPACE", OWN)
        .env("COUNTERFOIL_TEST_DAEMON", stage.daemon.url(""))
        .env(
            "COUNTERFOIL_TEST_TLS",
            format!("rediss://localhost:{}", tls.port()),
        )
        .env("COUNTERFOIL_TEST_CA", certificates.file("ca.pem"));
    println!("{}", run_aside(tests).await?);
    for (number, readme) in language.readmes().into_iter().enumerate() {
        let mut program = language.package.dev("program", installed);
        program
            .arg(stage.site.redis.socket())
            .env("COUNTERFOIL_README", &readme);
        let printed = run_aside(program).await?;
        println!("{}: {}", readme.display(), printed.trim_end());
        let counted = stage.pending(NAMESPACE_OF_READMES, FAMILY_OF_READMES).await;
        if counted.values().sum::<i64>() != number as i64 + 1 {
            return Err(format!("{} counted {counted:?}", readme.display()));
        }
    }
    if language.package.0 == "rust" {
        return Ok(());
    }
    let test = language.package.dev("sandbox", installed);
    let mut sandbox = Command::new(env!("CARGO_BIN_EXE_counterfoil"));
    let config = stage.site.folder().join("counterfoil.toml");
    sandbox.arg("--config").arg(config).args(["sandbox", "--"]);
    sandbox.arg(test.get_program()).args(test.get_args());
    println!("{}", run_aside(sandbox).await?);
    Ok(())
}

/// Runs a command, whose processes are stopped after a while: a test that hangs fails.
async fn run_aside(command: Command) -> Result<String, String> {
    let mut limited = Command::new("timeout");
    limited
        .args(["--verbose", "--kill-after=10", LONGEST_TESTS])
        .arg(command.get_program())
        .args(command.get_args())
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdin(Stdio::null());
    spawn_blocking(move || run(&mut limited))
        .await
        .map_err(|error| error.to_string())?
}

macro_rules! languages {
    ($($name:ident $language:expr;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            try_package(&$language).await;
        })*
    };
}

languages! {
    python PYTHON;
    node NODE;
    php PHP;
    ruby RUBY;
    go GO;
    rust RUST;
}
