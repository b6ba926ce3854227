//! Passwords derived from one secret.
//!
//! Since a password is a function of the tenant's seed, a Secret that was deleted or edited is put back
//! exactly as it was, and no password lives in the memory of one process alone.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use fleet_api::names::UserRole;
use ring::{
    hmac,
    rand::{SecureRandom as _, SystemRandom},
};

/// Bytes of a seed.
const SEED_BYTES: usize = 32;
/// Characters of a password: the most that replication takes (MySQL manual, CHANGE REPLICATION SOURCE TO),
/// 192 bits.
const PASSWORD_CHARACTERS: usize = 32;

/// The secret that a tenant's passwords are derived from.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed([u8; SEED_BYTES]);

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed")
    }
}

impl Seed {
    /// A new one; `None` where the system gives no random bytes.
    pub fn random() -> Option<Self> {
        let mut bytes = [0; SEED_BYTES];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// The seed in these bytes; `None` where they are not as many as a seed has.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The bytes of the seed.
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The password of a role in the cluster with this UID.
    pub fn password(&self, cluster_uid: &str, role: UserRole) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let tag = hmac::sign(&key, format!("password/{cluster_uid}/{role}").as_bytes());
        let mut password = URL_SAFE_NO_PAD.encode(tag.as_ref());
        password.truncate(PASSWORD_CHARACTERS);
        password
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_differ_by_seed_cluster_and_role_and_by_nothing_else() {
        let (one, two) = (Seed::from_bytes(&[1; 32]).unwrap(), Seed::from_bytes(&[2; 32]).unwrap());
        let password = one.password("uid", UserRole::Writer);
        assert_eq!(password.len(), 32);
        assert_eq!(password, one.password("uid", UserRole::Writer));
        for other in [
            one.password("uid", UserRole::Reader),
            one.password("other", UserRole::Writer),
            two.password("uid", UserRole::Writer),
        ] {
            assert_ne!(password, other);
        }
    }

    #[test]
    fn a_seed_of_another_length_is_refused() {
        assert_eq!(Seed::from_bytes(&[0; 31]), None);
        assert_eq!(Seed::from_bytes(b""), None);
    }
}
