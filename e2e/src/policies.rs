//! The admission policies (`policies/admission`) and the cases that say what each has to do (`policies/cases`).

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::paths;

/// The policies: each has a file of this name in both folders.
pub const POLICIES: [&str; 5] =
    ["images-by-digest", "memory-limit", "deletion-protection", "traffic", "secrets"];

/// A person with all rights, who makes the request of a case that names nobody.
const ANYBODY: &str = "anna";

/// What is done in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// `object` is made.
    Create,
    /// `oldObject` becomes `object`.
    Update,
    /// `oldObject` is deleted.
    Delete,
}

/// What comes of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Verdict {
    /// It is done.
    Allow,
    /// It is done, and the person is warned.
    Warn,
    /// It is refused.
    Deny,
}

/// A request and what a policy has to say to it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Case {
    /// What it is about.
    pub name: String,
    /// Labels of the namespace.
    #[serde(default)]
    pub namespace_labels: BTreeMap<String, String>,
    user: Option<String>,
    /// What is done.
    pub operation: Operation,
    /// The object afterwards.
    pub object: Option<Value>,
    /// The object before.
    pub old_object: Option<Value>,
    /// What comes of it.
    pub verdict: Verdict,
    /// What the refusal or the warning says.
    #[serde(default)]
    pub message: String,
}

impl Case {
    /// Who makes the request.
    pub fn user(&self, namespace: &str) -> String {
        self.user.as_deref().unwrap_or(ANYBODY).replace("{namespace}", namespace)
    }

    fn check(&self) -> Result<()> {
        let (object, old) = (self.object.is_some(), self.old_object.is_some());
        let wanted = match self.operation {
            Operation::Create => (true, false),
            Operation::Update => (true, true),
            Operation::Delete => (false, true),
        };
        ensure!((object, old) == wanted, "{}: object or oldObject does not fit the operation", self.name);
        ensure!(
            (self.verdict == Verdict::Allow) == self.message.is_empty(),
            "{}: a message belongs to Deny and Warn, and only to them",
            self.name
        );
        Ok(())
    }

    fn who_does_what(&self) -> String {
        let operation = match self.operation {
            Operation::Create => "create",
            Operation::Update => "update",
            Operation::Delete => "delete",
        };
        let kind = self.object.as_ref().or(self.old_object.as_ref()).and_then(|object| object.get("kind"));
        let kind = kind.and_then(Value::as_str).unwrap_or_default();
        match self.user.as_deref() {
            None => format!("{operation} {kind}"),
            Some(user) => format!("{operation} {kind} as `{}`", user.replace("{namespace}", "NAMESPACE")),
        }
    }
}

/// A policy with its bindings, as YAML.
pub fn admission(policy: &str) -> Result<String> {
    let path = file("admission", policy);
    std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))
}

/// The cases of a policy. There is one that it refuses and one that it lets through.
pub fn cases(policy: &str) -> Result<Vec<Case>> {
    let path = file("cases", policy);
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
    parse(&text).with_context(|| format!("{} can't be used", path.display()))
}

fn parse(text: &str) -> Result<Vec<Case>> {
    let cases: Vec<Case> = serde_yaml_ng::from_str(text)?;
    cases.iter().try_for_each(Case::check)?;
    let has = |verdict| cases.iter().any(|case| case.verdict == verdict);
    ensure!(has(Verdict::Deny) && has(Verdict::Allow), "there has to be a case of Deny and one of Allow");
    Ok(cases)
}

fn file(folder: &str, policy: &str) -> PathBuf {
    paths::checkout().join("policies").join(folder).join(policy).with_extension("yaml")
}

/// All cases in Markdown.
pub fn table() -> Result<String> {
    let mut text = String::from("| policy | case | request | namespace | verdict |\n|---|---|---|---|---|\n");
    for policy in POLICIES {
        for case in cases(policy)? {
            row(&mut text, policy, &case)?;
        }
    }
    Ok(text)
}

fn row(text: &mut String, policy: &str, case: &Case) -> fmt::Result {
    let labels = case.namespace_labels.iter().map(|(key, value)| format!("`{key}: {value}`"));
    let labels = labels.collect::<Vec<_>>().join(", ");
    let verdict = match case.verdict {
        Verdict::Allow => "allowed".to_owned(),
        Verdict::Warn => format!("**warned**: {}", case.message),
        Verdict::Deny => format!("**refused**: {}", case.message),
    };
    writeln!(text, "| {policy} | {} | {} | {labels} | {verdict} |", case.name, case.who_does_what())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_says_nothing_is_refused() {
        let deny = "{name: d, operation: DELETE, oldObject: {}, verdict: Deny, message: m}";
        let allow = "{name: a, operation: CREATE, object: {}, verdict: Allow}";
        assert_eq!(parse(&format!("[{deny}, {allow}]")).unwrap().len(), 2);
        for (text, part) in [
            (format!("[{deny}]"), "one of Allow"),
            (format!("[{allow}]"), "a case of Deny"),
            (format!("[{deny}, {}]", allow.replace("CREATE", "UPDATE")), "does not fit the operation"),
            (format!("[{allow}, {}]", deny.replace(", message: m", "")), "a message belongs to"),
            (format!("[{allow}, {}]", deny.replace("message", "massage")), "massage"),
        ] {
            let refused = format!("{:#}", parse(&text).unwrap_err());
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }

    #[test]
    fn every_policy_and_every_file_of_cases_is_in_the_list() {
        for folder in ["admission", "cases"] {
            let found = std::fs::read_dir(paths::checkout().join("policies").join(folder)).unwrap();
            let mut found: Vec<String> = found
                .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
                .collect();
            let mut wanted = POLICIES.to_vec();
            found.sort();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{folder}");
        }
        for policy in POLICIES {
            assert!(!cases(policy).unwrap().is_empty());
        }
    }
}
