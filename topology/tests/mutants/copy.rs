//! A copy of this crate in which every mutant can be switched on, and its checks.
//!
//! Where a mutant replaces an expression, the copy has both: `(if crate::broken("name") { new } else { old })`. So
//! all of them are compiled at once, and the tests run again and again, each time with another one switched on.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{MUTANTS, Mutant};

/// The tests of the copy.
const TARGETS: [&str; 5] = ["--lib", "--test", "it", "--test", "model"];

/// The checks, from fast to slow: the first one that fails is enough.
const CHECKS: [&[&str]; 3] = [
    &["--test", "it", "--", "--skip", "properties::", "--skip", "convergence::"],
    &["--no-fail-fast", "--lib", "--test", "it"],
    &["--test", "model"],
];

/// Few cases, the same ones each time and no search for smaller ones; and neither debugging information nor
/// backtraces, which nobody reads.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("PROPTEST_CASES", "16"),
    ("PROPTEST_RNG_SEED", "1"),
    ("PROPTEST_MAX_SHRINK_ITERS", "0"),
    ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true"),
    ("MODEL_FAULTS", "1"),
    ("CARGO_PROFILE_DEV_DEBUG", "0"),
    ("RUST_BACKTRACE", "0"),
];

/// The variable that names the mutant which is switched on.
const SWITCH: &str = "FLEET_MUTANT";

/// What the copy asks whether a mutant is switched on.
const BROKEN: &str = r#"
fn broken(mutant: &str) -> bool {
    static ON: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ON.get_or_init(|| std::env::var("SWITCH").ok()).as_deref() == Some(mutant)
}
"#;

/// Made when the first mutant needs it, and used for one at a time.
static COPY: LazyLock<Mutex<Option<Workspace>>> = LazyLock::new(|| {
    Mutex::new(Workspace::made(&MUTANTS.concat()).map_err(|error| eprintln!("{error}")).ok())
});

/// How the checks end.
pub(crate) enum Outcome {
    /// All tests pass.
    Passed,
    /// These tests fail, one at least.
    Failed(Vec<String>),
    /// No test says that it fails: they could not be run, for the reason that cargo gives.
    Ended(String),
}

/// Checks the copy with that mutant switched on, and says how long that took.
pub(crate) fn checked(name: &str) -> (Outcome, Duration) {
    let copy = COPY.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = Instant::now();
    let outcome = copy.as_ref().map(|copy| copy.checked(name));
    let took = begun.elapsed();
    drop(copy);
    match outcome {
        Some(Ok(outcome)) => (outcome, took),
        Some(Err(error)) => panic!("{error}"),
        None => panic!("there is no copy in which a mutant could be switched on: the first test says why"),
    }
}

/// A workspace with this crate alone.
struct Workspace {
    folder: PathBuf,
    /// Keeps other processes from doing the same.
    _lock: File,
}

impl Workspace {
    /// Makes the copy, and sees that it passes its checks as long as no mutant is switched on.
    fn made(mutants: &[Mutant]) -> Result<Self, String> {
        let begun = Instant::now();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants");
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        create(&folder)?;
        let lock = folder.join("lock");
        let lock =
            File::create(&lock).and_then(|file| file.lock().map(|()| file)).map_err(failed("lock", &lock))?;
        // `docs` has the page that the states are compared with.
        for part in ["topology", "docs"] {
            let copied = folder.join(part);
            if copied.exists() {
                fs::remove_dir_all(&copied).map_err(failed("remove", &copied))?;
            }
            copy_folder(&workspace.join(part), &copied)?;
        }
        copy_file(&workspace.join("Cargo.lock"), &folder.join("Cargo.lock"))?;
        let manifest = read(&workspace.join("Cargo.toml"))?;
        write(&folder.join("Cargo.toml"), &with_this_member_alone(&manifest)?)?;
        insert(mutants, &folder.join("topology/src"))?;
        let copy = Self { folder, _lock: lock };
        let built = copy.cargo("", &[&TARGETS[..], &["--no-run"]].concat())?;
        if !built.status.success() {
            return Err(format!("a mutant does not compile:\n{}", String::from_utf8_lossy(&built.stderr)));
        }
        match copy.checked("")? {
            Outcome::Passed => {
                println!("made, and passes without a mutant, in {:.1} s", begun.elapsed().as_secs_f64());
                Ok(copy)
            }
            Outcome::Failed(tests) => Err(format!("the copy fails without a mutant: {}", tests.join(", "))),
            Outcome::Ended(said) => Err(format!("the copy can't be checked without a mutant:\n{said}")),
        }
    }

    fn checked(&self, name: &str) -> Result<Outcome, String> {
        for check in CHECKS {
            let output = self.cargo(name, check)?;
            if output.status.success() {
                continue;
            }
            let printed = String::from_utf8_lossy(&output.stdout);
            let failed =
                |line: &str| line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned);
            let tests: Vec<_> = printed.lines().filter_map(failed).collect();
            if tests.is_empty() {
                return Ok(Outcome::Ended(String::from_utf8_lossy(&output.stderr).into_owned()));
            }
            return Ok(Outcome::Failed(tests));
        }
        Ok(Outcome::Passed)
    }

    fn cargo(&self, mutant: &str, arguments: &[&str]) -> Result<Output, String> {
        let mut cargo = Command::new(env!("CARGO"));
        // The lock file has more than this crate needs, so it can't be `--locked`; nothing newer is taken offline.
        cargo.args(["test", "--offline", "--package", env!("CARGO_PKG_NAME"), "--target-dir", "target"]);
        cargo.args(arguments).envs(ENVIRONMENT).env(SWITCH, mutant).current_dir(&self.folder);
        cargo.output().map_err(|error| format!("could not start {}: {error}", env!("CARGO")))
    }
}

/// The manifest of the workspace, for this crate without the others.
fn with_this_member_alone(manifest: &str) -> Result<String, String> {
    const MEMBERS: &str = "\nmembers = [";
    let parts = manifest
        .split_once(MEMBERS)
        .and_then(|(before, rest)| rest.split_once(']').map(|(_, after)| (before, after)));
    let (before, after) = parts.ok_or("the Cargo.toml of the workspace has no list of members")?;
    Ok(format!("{before}{MEMBERS}\"topology\"]{after}"))
}

/// Inserts the mutants, and what says which one is switched on.
fn insert(mutants: &[Mutant], sources: &Path) -> Result<(), String> {
    let mut files: BTreeMap<&str, Vec<Mutant>> = BTreeMap::new();
    for mutant in mutants {
        files.entry(mutant.file).or_default().push(*mutant);
    }
    let mut misfits = Vec::new();
    for (file, mutants) in files {
        let path = sources.join(file);
        let source = read(&path)?;
        match with_switches(&source, &mutants) {
            // What is switched can't be said when something is compiled.
            Ok(switched) => write(&path, &switched.replace("const fn", "fn"))?,
            Err(error) => misfits.push(error),
        }
    }
    if !misfits.is_empty() {
        return Err(misfits.join("\n"));
    }
    let path = sources.join("lib.rs");
    let library = read(&path)?;
    write(&path, &format!("#![allow(warnings)]\n{library}\n{}", BROKEN.replace("SWITCH", SWITCH)))
}

/// A file in which each of these mutants can be switched on.
fn with_switches(source: &str, mutants: &[Mutant]) -> Result<String, String> {
    let mut places: BTreeMap<usize, Vec<&Mutant>> = BTreeMap::new();
    let mut misfits = Vec::new();
    for mutant in mutants {
        let found: Vec<_> = source.match_indices(mutant.old).map(|(at, _)| at).collect();
        match found.as_slice() {
            [at] => places.entry(*at).or_default().push(mutant),
            found => misfits.push(format!(
                "{} has to be renewed: what it replaces is in topology/src/{} {} times instead of once: {}",
                mutant.name,
                mutant.file,
                found.len(),
                mutant.old
            )),
        }
    }
    let (mut switched, mut done) = (String::new(), 0);
    for (at, mutants) in places {
        let old = mutants[0].old;
        if at < done || mutants.iter().any(|mutant| mutant.old != old) {
            misfits.push(format!("{} overlaps another mutant: replace the same piece", mutants[0].name));
            continue;
        }
        let choices = mutants.iter().fold(format!("{{ {old} }}"), |others, Mutant { name, new, .. }| {
            // On a line of its own, which the compiler shows where the mutant is wrong.
            format!("\nif crate::broken({name:?}) {{ {new} }}\nelse {others}")
        });
        switched = format!("{switched}{}({choices})", &source[done..at]);
        done = at + old.len();
    }
    if misfits.is_empty() { Ok(switched + &source[done..]) } else { Err(misfits.join("\n")) }
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    create(to)?;
    for entry in fs::read_dir(from).map_err(failed("list", from))? {
        let entry = entry.map_err(failed("list", from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_folder(&source, &target)?;
        } else {
            copy_file(&source, &target)?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(failed("copy", from))
}

fn create(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(failed("create", folder))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(failed("read", path))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(failed("write", path))
}

fn failed<'a>(to: &'a str, path: &'a Path) -> impl FnOnce(std::io::Error) -> String + 'a {
    move |error| format!("could not {to} {}: {error}", path.display())
}

#[test]
fn a_mutant_that_does_not_fit_is_named() {
    const SOURCE: &str = "fn f() -> bool { a() && b() && b() }";
    let mutant = |name, old| Mutant { name, rule: "", file: "file.rs", old, new: "true" };
    let fits = mutant("fits", "a()");
    let switched = with_switches(SOURCE, &[fits]);
    let expected = "fn f() -> bool { (\nif crate::broken(\"fits\") { true }\nelse { a() }) && b() && b() }";
    assert_eq!(switched.as_deref(), Ok(expected));
    for (mutant, said) in [
        (
            mutant("gone", "c()"),
            "gone has to be renewed: what it replaces is in topology/src/file.rs 0 times",
        ),
        (
            mutant("twice", "b()"),
            "twice has to be renewed: what it replaces is in topology/src/file.rs 2 times",
        ),
        (mutant("overlaps", "a() && b() &&"), "overlaps another mutant"),
        (mutant("overlaps", ") && b() && b()"), "overlaps another mutant"),
    ] {
        let error = with_switches(SOURCE, &[fits, mutant]).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}
