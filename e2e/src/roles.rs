//! The roles of people and programs in a tenant namespace (`deploy/roles`), as the matrix of what each may do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::rbac::v1::ClusterRole;

use crate::paths;

/// The files in `deploy/roles`, in the order of the matrix.
pub const FILES: [&str; 5] = ["developer", "admin", "ci", "log-collector", "auditor"];

/// The verbs of requests about resources.
pub const VERBS: [&str; 8] =
    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// What the matrix calls the verbs that change nothing.
const READ: [&str; 3] = ["get", "list", "watch"];

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The API group, empty for the oldest one.
    pub group: String,
    /// The resource, with its subresource behind a slash.
    pub resource: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, resource } = self;
        match (group.is_empty(), resource.split_once('/')) {
            (true, _) => f.write_str(resource),
            (false, None) => write!(f, "{resource}.{group}"),
            (false, Some((resource, part))) => write!(f, "{resource}.{group}/{part}"),
        }
    }
}

/// A role and what it gives.
#[derive(Debug)]
pub struct Role {
    /// The name of its file.
    pub file: &'static str,
    /// The object.
    pub object: ClusterRole,
    rights: BTreeMap<Target, BTreeSet<String>>,
}

impl Role {
    fn parse(file: &'static str, text: &str) -> Result<Self> {
        let object: ClusterRole = serde_yaml_ng::from_str(text)?;
        let mut rights: BTreeMap<Target, BTreeSet<String>> = BTreeMap::new();
        for rule in object.rules.iter().flatten() {
            if rule.resource_names.is_some() || rule.non_resource_urls.is_some() {
                bail!("a rule has resourceNames or nonResourceURLs, which the matrix can't show");
            }
            if let Some(verb) = rule.verbs.iter().find(|verb| !VERBS.contains(&verb.as_str())) {
                bail!("the verb {verb:?} is none of {}", VERBS.join(", "));
            }
            for group in rule.api_groups.iter().flatten() {
                for resource in rule.resources.iter().flatten() {
                    if group.contains('*') || resource.contains('*') {
                        bail!(
                            "{resource:?} of {group:?}: name each resource, a later one is not to be given unseen"
                        );
                    }
                    let target = Target { group: group.clone(), resource: resource.clone() };
                    rights.entry(target).or_default().extend(rule.verbs.iter().cloned());
                }
            }
        }
        Ok(Self { file, object, rights })
    }

    /// Whether it gives the right.
    pub fn allows(&self, target: &Target, verb: &str) -> bool {
        self.rights.get(target).is_some_and(|verbs| verbs.contains(verb))
    }
}

/// All roles.
pub fn all() -> Result<Vec<Role>> {
    FILES
        .into_iter()
        .map(|file| {
            let path = paths::checkout().join("deploy/roles").join(file).with_extension("yaml");
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("could not read {}", path.display()))?;
            Role::parse(file, &text).with_context(|| format!("{} can't be used", path.display()))
        })
        .collect()
}

/// Everything that some role has a right to: the rows of the matrix.
pub fn targets(roles: &[Role]) -> BTreeSet<Target> {
    roles.iter().flat_map(|role| role.rights.keys().cloned()).collect()
}

/// The matrix in Markdown, with what each role is for.
pub fn matrix(roles: &[Role]) -> Result<String, fmt::Error> {
    let mut text = String::from("| ClusterRole | for |\n|---|---|\n");
    for Role { object, .. } in roles {
        let annotations = object.metadata.annotations.as_ref();
        let purpose = annotations.and_then(|all| all.get("kubernetes.io/description"));
        let name = object.metadata.name.as_deref().unwrap_or_default();
        writeln!(text, "| `{name}` | {} |", purpose.map_or("", String::as_str))?;
    }
    writeln!(text, "\n| resource | {} |", FILES.join(" | "))?;
    writeln!(text, "|---|{}", "---|".repeat(roles.len()))?;
    for target in targets(roles) {
        let cells = roles.iter().map(|role| cell(role.rights.get(&target))).collect::<Vec<_>>();
        writeln!(text, "| {target} | {} |", cells.join(" | "))?;
    }
    Ok(text)
}

fn cell(verbs: Option<&BTreeSet<String>>) -> String {
    let Some(verbs) = verbs else {
        return "–".to_owned();
    };
    let has = |verb: &&str| verbs.contains(*verb);
    let reads = READ.iter().all(has);
    let shown = VERBS.iter().filter(|verb| has(verb) && !(reads && READ.contains(verb))).copied();
    reads.then_some("read").into_iter().chain(shown).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(rule: &str) -> Result<Role> {
        let head =
            "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: x}, rules: [";
        Role::parse("admin", &format!("{head}{rule}]}}"))
    }

    #[test]
    fn a_rule_that_the_matrix_cannot_show_is_refused() {
        for (rule, part) in [
            ("{apiGroups: [''], resources: ['*'], verbs: [get]}", "name each resource"),
            ("{apiGroups: ['*'], resources: [pods], verbs: [get]}", "name each resource"),
            ("{apiGroups: [''], resources: [pods], verbs: ['*']}", "the verb \"*\""),
            ("{apiGroups: [''], resources: [pods], verbs: [escalate]}", "the verb \"escalate\""),
            ("{apiGroups: [''], resources: [secrets], resourceNames: [a], verbs: [get]}", "resourceNames"),
        ] {
            let refused = parsed(rule).unwrap_err().to_string();
            assert!(refused.contains(part), "{rule}: {refused}");
        }
    }

    #[test]
    fn a_cell_names_what_is_more_than_reading() {
        let role =
            parsed("{apiGroups: [a.b], resources: [c, c/d], verbs: [watch, list, get, delete]}").unwrap();
        let text = matrix(&[role]).unwrap();
        assert!(text.contains("| c.a.b | read, delete |\n| c.a.b/d | read, delete |"), "{text}");
    }

    #[test]
    fn only_the_admin_reads_secrets_and_nobody_writes_them_or_gives_rights() {
        for role in all().unwrap() {
            let may = |resource: &str, verb: &str, group: &str| {
                role.allows(&Target { group: group.to_owned(), resource: resource.to_owned() }, verb)
            };
            assert_eq!(may("secrets", "get", ""), role.file == "admin", "{}", role.file);
            for verb in ["create", "update", "patch"] {
                assert!(!may("secrets", verb, "") && !may("pods", verb, ""), "{}", role.file);
                assert!(!may("rolebindings", verb, "rbac.authorization.k8s.io"), "{}", role.file);
            }
        }
    }
}
