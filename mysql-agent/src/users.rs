//! The users of an instance, and the statements that make them as mysqld starts.
//!
//! Users are made on each instance by itself, outside the binary log: a replicated `CREATE USER` that waits
//! for its acknowledgement is invisible, so a replica that logs in with that user could never acknowledge
//! it. The init file runs before mysqld takes connections and is not bound by super_read_only.
//!
//! | user | may |
//! |---|---|
//! | `fleet_system`@`localhost`, @`127.0.0.1` | everything; a new random password at each start, known to the agent alone |
//! | replication | receive the binary log, be a CLONE donor, also while no client is let in |
//! | admin | everything on users' schemas, accounts and grants; not what would undo the cluster: SUPER, SYSTEM_VARIABLES_ADMIN (super_read_only, semi-sync), SESSION_VARIABLES_ADMIN (sql_log_bin), RELOAD (RESET BINARY LOGS), SHUTDOWN, FILE, SYSTEM_USER, writing to `mysql`, `sys` and `mysql_fleet` |
//! | writer | read and write users' schemas with their tables, views, routines, triggers, events; nothing of `mysql`, read-only `sys` and `mysql_fleet` |
//! | reader | read users' schemas, see running statements |
//!
//! Every user but `fleet_system` at the socket needs TLS. `root` is dropped.

use std::{fmt::Write as _, fs, io, path::Path};

/// The agent's own user.
pub const SYSTEM_USER: &str = "fleet_system";

/// MySQL's limit for the length of a user name.
const LONGEST_USERNAME: usize = 32;

/// A role with a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Receives the binary log and copies data.
    Replication,
    /// A person's admin.
    Admin,
    /// Applications that write.
    Writer,
    /// Applications that read.
    Reader,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Replication, Self::Admin, Self::Writer, Self::Reader];

    /// Name of the role's folder.
    pub fn name(self) -> &'static str {
        match self {
            Self::Replication => "replication",
            Self::Admin => "admin",
            Self::Writer => "writer",
            Self::Reader => "reader",
        }
    }
}

/// Credentials of a role.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Name of the user.
    pub username: String,
    /// Its password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Credentials that can't be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the credentials of role {role} in {file} {problem}; correct the role's Secret")]
pub struct CredentialsError {
    role: &'static str,
    file: String,
    problem: String,
}

/// Reads and checks the credentials of a role from `users/<role>/{username,password}`.
pub fn read(users: &Path, role: Role) -> Result<Credentials, CredentialsError> {
    let dir = users.join(role.name());
    let field = |file: &str| {
        let path = dir.join(file);
        let fail = |problem: String| CredentialsError {
            role: role.name(),
            file: path.display().to_string(),
            problem,
        };
        let text = fs::read(&path).map_err(|error: io::Error| fail(format!("cannot be read ({error})")))?;
        let text = String::from_utf8(text).map_err(|_| fail("are not UTF-8".to_owned()))?;
        if text.is_empty() {
            return Err(fail("are empty".to_owned()));
        }
        if text.chars().any(char::is_control) {
            return Err(fail("hold a control character, such as a line break at the end".to_owned()));
        }
        Ok((
            text,
            fail(
                "hold a name that MySQL or the agent keeps for itself, or longer than 32 characters"
                    .to_owned(),
            ),
        ))
    };
    let (username, reserved) = field("username")?;
    let (password, _) = field("password")?;
    let taken = ["root", SYSTEM_USER].contains(&username.as_str()) || username.starts_with("mysql.");
    if taken || username.chars().count() > LONGEST_USERNAME {
        return Err(reserved);
    }
    Ok(Credentials { username, password })
}

/// The statements that mysqld runs as it starts. `roles` are those whose credentials are usable; a role
/// without is left as it is.
pub fn init_file(system_password: &str, roles: &[(Role, Credentials)]) -> String {
    let mut sql = String::from("SET SESSION sql_log_bin=0;\nSET SESSION sql_mode='';\n");
    line(&mut sql, "SET SESSION autocommit=1, transaction_read_only=0");
    // By the socket, and by the administrative interface: names are not resolved.
    for (host, require) in [("localhost", "NONE"), ("127.0.0.1", "SSL")] {
        let system = format!("{}@'{host}'", quoted(SYSTEM_USER));
        make(&mut sql, &system, system_password, require);
        line(&mut sql, &format!("GRANT ALL PRIVILEGES ON *.* TO {system} WITH GRANT OPTION"));
    }
    // Left without a password by --initialize-insecure.
    line(&mut sql, "DROP USER IF EXISTS 'root'@'localhost'");
    for (role, credentials) in roles {
        let user = format!("{}@'%'", quoted(&credentials.username));
        make(&mut sql, &user, &credentials.password, "SSL");
        line(&mut sql, &format!("REVOKE ALL PRIVILEGES, GRANT OPTION FROM {user}"));
        for grant in grants(*role, &user) {
            line(&mut sql, &grant);
        }
    }
    sql
}

fn make(sql: &mut String, user: &str, password: &str, require: &str) {
    let password = quoted(password);
    line(sql, &format!("CREATE USER IF NOT EXISTS {user} IDENTIFIED BY {password}"));
    line(
        sql,
        &format!(
            "ALTER USER {user} IDENTIFIED BY {password} REQUIRE {require} PASSWORD EXPIRE NEVER ACCOUNT UNLOCK"
        ),
    );
}

fn line(sql: &mut String, statement: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(sql, "{statement};");
}

const DATA: &str = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, REFERENCES, INDEX, ALTER, CREATE TEMPORARY TABLES, LOCK TABLES, EXECUTE, CREATE VIEW, SHOW VIEW, CREATE ROUTINE, ALTER ROUTINE, EVENT, TRIGGER";
const WRITES: &str = "INSERT, UPDATE, DELETE, CREATE, DROP, REFERENCES, INDEX, ALTER, CREATE VIEW, CREATE ROUTINE, ALTER ROUTINE, EVENT, TRIGGER";
const ADMIN_STATIC: &str = "PROCESS, SHOW DATABASES, REPLICATION SLAVE, REPLICATION CLIENT, CREATE USER, CREATE TABLESPACE, CREATE ROLE, DROP ROLE";
const ADMIN_DYNAMIC: &str = "ALLOW_NONEXISTENT_DEFINER, APPLICATION_PASSWORD_ADMIN, BACKUP_ADMIN, CONNECTION_ADMIN, CREATE_SPATIAL_REFERENCE_SYSTEM, FLUSH_OPTIMIZER_COSTS, FLUSH_PRIVILEGES, FLUSH_STATUS, FLUSH_TABLES, FLUSH_USER_RESOURCES, ROLE_ADMIN, SENSITIVE_VARIABLES_OBSERVER, SET_ANY_DEFINER, SHOW_ROUTINE, XA_RECOVER_ADMIN";

fn grants(role: Role, user: &str) -> Vec<String> {
    let protect = |schemas: &[&str], what: &str| {
        schemas.iter().map(|schema| format!("REVOKE {what} ON `{schema}`.* FROM {user}")).collect::<Vec<_>>()
    };
    match role {
        // Others get what they lack also from an instance that lets no client in (offline_mode), which takes
        // CONNECTION_ADMIN.
        Role::Replication => {
            vec![format!("GRANT REPLICATION SLAVE, BACKUP_ADMIN, CONNECTION_ADMIN ON *.* TO {user}")]
        }
        Role::Admin => {
            let mut lines = vec![
                format!("GRANT {DATA}, {ADMIN_STATIC} ON *.* TO {user} WITH GRANT OPTION"),
                format!("GRANT {ADMIN_DYNAMIC} ON *.* TO {user} WITH GRANT OPTION"),
            ];
            lines.extend(protect(&["mysql", "sys", "mysql_fleet"], WRITES));
            lines
        }
        Role::Writer => {
            let mut lines = vec![format!("GRANT {DATA} ON *.* TO {user}")];
            lines.extend(protect(&["mysql"], DATA));
            lines.extend(protect(&["sys", "mysql_fleet"], WRITES));
            lines
        }
        Role::Reader => {
            let mut lines = vec![format!("GRANT SELECT, SHOW VIEW, PROCESS ON *.* TO {user}")];
            lines.extend(protect(&["mysql"], "SELECT, SHOW VIEW"));
            lines
        }
    }
}

/// A string literal, under a sql_mode in which the backslash escapes.
pub fn quoted(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('\'');
    for character in text.chars() {
        match character {
            '\'' => literal.push_str("''"),
            '\\' => literal.push_str("\\\\"),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            '\0' => literal.push_str("\\0"),
            other => literal.push(other),
        }
    }
    literal.push('\'');
    literal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(username: &[u8], password: &[u8]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("writer")).unwrap();
        fs::write(dir.path().join("writer/username"), username).unwrap();
        fs::write(dir.path().join("writer/password"), password).unwrap();
        dir
    }

    #[test]
    fn every_role_is_made_outside_the_binary_log() {
        let credentials =
            |name: &str| Credentials { username: name.to_owned(), password: format!("{name}'s \\ password") };
        let roles = Role::ALL.map(|role| (role, credentials(role.name())));
        insta::assert_snapshot!(init_file("system", &roles));
    }

    #[test]
    fn password_cannot_leave_its_literal() {
        assert_eq!(quoted(r"a'b\'c"), r"'a''b\\''c'");
        assert_eq!(quoted("a\nb\0"), r"'a\nb\0'");
    }

    #[test]
    fn nonsense_in_a_secret_names_role_file_and_problem() {
        for (username, password, problem) in [
            (&b""[..], &b"x"[..], "empty"),
            (b"w", b"", "empty"),
            (b"w\n", b"x", "control character"),
            (b"\xff", b"x", "UTF-8"),
            (b"root", b"x", "keeps for itself"),
            (b"fleet_system", b"x", "keeps for itself"),
            (b"mysql.sys", b"x", "keeps for itself"),
            (b"a-name-with-more-than-thirty-two-characters", b"x", "longer than 32"),
        ] {
            let error = read(folder(username, password).path(), Role::Writer).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("role writer"), "{error}");
        }
        let error = read(Path::new("/nonexistent"), Role::Admin).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/admin/username"), "{error}");
    }

    #[test]
    fn password_stays_out_of_debug_output() {
        let credentials = read(folder(b"w", b"secret").path(), Role::Writer).unwrap();
        assert!(!format!("{credentials:?}").contains("secret"));
    }
}
