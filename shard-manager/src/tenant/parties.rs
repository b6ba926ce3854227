//! Who shows certificates of the tenant's authority and trusts it, as far as that can be seen.

use std::collections::BTreeSet;

use fleet_api::{names, v1::MySQLCluster};
use fleet_proto::agent::v1::{InstanceFacts, TlsFacts};
use fleet_runtime::tls::{Material, Trust, material};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, core::DeserializeGuard};

use super::rotation::{Party, Seen};
use crate::{
    agents::Sighting,
    stores::{Stores, cluster_of},
};

/// Everybody who can be seen. `own` is what this process shows and trusts.
pub fn parties(
    namespace: &str,
    stores: &Stores,
    own: Option<&Material>,
    sighting: impl Fn(&str, &str) -> Sighting,
    now: Timestamp,
) -> Vec<Party> {
    let shard = [names::shard_tls_secret(namespace), names::shard_client_secret(namespace)];
    let clusters: Vec<String> = stores.clusters.state().iter().filter_map(|cluster| kept(cluster)).collect();
    let of_shard = shard.iter().map(|name| {
        let seen = stores.get(&stores.secrets, name).ok_or_else(|| "is not there yet".to_owned());
        of_secret(name, seen.and_then(|secret| of_material(material(&secret).as_ref(), now)))
    });
    // A cluster that has none yet gets one of the authority of that moment.
    let of_clusters = clusters.iter().filter_map(|cluster| {
        let name = names::tls_secret(cluster);
        let secret = stores.get(&stores.secrets, &name)?;
        (cluster_of(secret.as_ref()) == Some(cluster))
            .then(|| of_secret(&name, of_material(material(&secret).as_ref(), now)))
    });
    let own = Party { who: "this shard".to_owned(), is_secret: false, seen: of_material(own, now) };
    let pods = stores.pods.state();
    let of_pods = pods.iter().filter(|pod| runs(pod)).map(|pod| {
        let facts = sighting(cluster_of(pod.as_ref()).unwrap_or_default(), &pod.name_any()).facts;
        Party {
            who: format!("pod {}", pod.name_any()),
            is_secret: false,
            seen: facts.map_or_else(|| Err("does not answer".to_owned()), |facts| of_instance(&facts)),
        }
    });
    of_shard.chain(of_clusters).chain([own]).chain(of_pods).collect()
}

/// The name of a cluster whose Secret is kept. That of one which is deleted stays as it is until it is gone.
fn kept(cluster: &DeserializeGuard<MySQLCluster>) -> Option<String> {
    let metadata = match &cluster.0 {
        Ok(cluster) => &cluster.metadata,
        Err(error) => &error.metadata,
    };
    metadata.name.clone().filter(|_| metadata.deletion_timestamp.is_none())
}

fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

fn of_secret(name: &str, seen: Result<Seen, String>) -> Party {
    Party { who: format!("Secret {name}"), is_secret: true, seen }
}

fn of_material(material: Option<&Material>, now: Timestamp) -> Result<Seen, String> {
    let material = material.ok_or_else(|| "has no certificate yet".to_owned())?;
    let Trust { authorities, issuer } = material.trust(now).map_err(|error| error.to_string())?;
    Ok(Seen { trusts: authorities, shows: [issuer].into() })
}

/// An instance trusts what both its agent and its mysqld trust.
fn of_instance(facts: &InstanceFacts) -> Result<Seen, String> {
    let Some(agent) = &facts.tls else {
        return Err(format!(
            "does not say whom it trusts, since its agent is of release {}: delete the pod, a primary's last",
            facts.agent_version
        ));
    };
    let Some(mysqld) = &facts.mysqld_tls else {
        return Err("has a mysqld that was not seen to load its certificates".to_owned());
    };
    let trusted =
        |facts: &TlsFacts| facts.authorities.iter().cloned().map(Into::into).collect::<BTreeSet<_>>();
    let issuer =
        |facts: &TlsFacts| Some(facts.issuer.clone()).filter(|issuer| !issuer.is_empty()).map(Into::into);
    Ok(Seen { trusts: &trusted(agent) & &trusted(mysqld), shows: [issuer(agent), issuer(mysqld)].into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(authorities: &[&str], issuer: &str) -> TlsFacts {
        TlsFacts {
            authorities: authorities.iter().map(|text| (*text).to_owned()).collect(),
            issuer: issuer.to_owned(),
        }
    }

    fn facts(agent: Option<TlsFacts>, mysqld: Option<TlsFacts>) -> InstanceFacts {
        InstanceFacts {
            tls: agent,
            mysqld_tls: mysqld,
            agent_version: "0.1.0".to_owned(),
            ..InstanceFacts::default()
        }
    }

    #[test]
    fn an_instance_trusts_what_its_agent_and_its_mysqld_trust() {
        let seen = of_instance(&facts(Some(tls(&["a", "b"], "b")), Some(tls(&["a"], "a")))).unwrap();
        let name = |text: &str| fleet_runtime::tls::Fingerprint::from(text.to_owned());
        assert_eq!(seen.trusts, [name("a")].into());
        assert_eq!(seen.shows, [Some(name("a")), Some(name("b"))].into());
        let unknown = of_instance(&facts(Some(tls(&["a"], "")), Some(tls(&["a"], "a")))).unwrap();
        assert!(unknown.shows.contains(&None));
    }

    #[test]
    fn an_instance_that_does_not_say_is_no_ready_one() {
        let why = of_instance(&facts(None, None)).unwrap_err();
        assert!(why.contains("release 0.1.0") && why.contains("delete the pod"), "{why}");
        let why = of_instance(&facts(Some(tls(&["a"], "a")), None)).unwrap_err();
        assert!(why.contains("mysqld"), "{why}");
    }
}
