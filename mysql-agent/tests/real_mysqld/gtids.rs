//! The algebra of sets of transactions that every decision rests on, against that of mysqld.

use std::fmt::Write;

use fastrand::Rng;
use fleet_topology::GtidSet;
use mysql_async::{Row, prelude::Queryable};

use crate::{harness::World, server::Server};

/// Pairs of sets, and how many of them a statement asks about.
const PAIRS: usize = 2048;
const AT_ONCE: usize = 64;

/// The highest number that a transaction can have.
const HIGHEST: u64 = i64::MAX as u64 - 1;

const TAGS: [&str; 5] = ["", "", "domain_1", "_2", "abcdefghijklmnopqrstuvwxyz_01234"];

/// A set as somebody may write it: in any order, with parts more than once, intervals that touch or overlap, white
/// space and letters of either case.
fn text(rng: &mut Rng) -> String {
    let mut text = String::new();
    for part in 0..rng.usize(0..10) {
        let space = |rng: &mut Rng| rng.choice(["", "", " ", "\n"]).unwrap();
        let comma = if part == 0 { "" } else { "," };
        let uuid = format!("{:08x}-0000-4000-8000-0000000000ab", rng.u32(0..6));
        write!(text, "{comma}{}{uuid}", space(rng)).unwrap();
        for _ in 0..rng.usize(1..3) {
            let tag = rng.choice(TAGS).unwrap();
            if !tag.is_empty() {
                write!(text, "{}:{tag}", space(rng)).unwrap();
            }
            for _ in 0..rng.usize(1..4) {
                let first = if rng.u8(0..20) == 0 { HIGHEST - rng.u64(0..4) } else { rng.u64(1..30) };
                let last = (first + rng.u64(0..6)).min(HIGHEST);
                let interval = if first == last { first.to_string() } else { format!("{first}-{last}") };
                write!(text, "{}:{interval}", space(rng)).unwrap();
            }
        }
    }
    if rng.bool() { text.to_uppercase() } else { text }
}

/// A set, and one that has often something to do with it: the same, a part of it, or it and something else.
fn pair(rng: &mut Rng) -> (String, String) {
    let (one, other) = (text(rng), text(rng));
    let other = match rng.u8(0..6) {
        0 => one.clone(),
        1 => one.split(',').next().unwrap_or_default().to_owned(),
        2 => format!("{one},{other}"),
        _ => other,
    };
    if rng.bool() { (one, other) } else { (other, one) }
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_are_parsed_printed_and_combined_as_mysqld_does() {
    let seed = std::env::var("FLEET_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    let mut rng = Rng::with_seed(seed);
    let world = World::new(23000);
    let server = Server::start(&world, 0, &[]);
    let mut session = server.session().await;
    for _ in 0..PAIRS / AT_ONCE {
        let pairs: Vec<_> = (0..AT_ONCE).map(|_| pair(&mut rng)).collect();
        let asked = pairs.iter().map(|(a, b)| {
            format!(
                "GTID_SUBTRACT('{a}', ''), GTID_SUBTRACT(CONCAT('{a}', ',', '{b}'), ''), \
                 GTID_SUBTRACT('{a}', '{b}'), CAST(GTID_SUBSET('{a}', '{b}') AS CHAR)"
            )
        });
        let sql = format!("SELECT {}", asked.collect::<Vec<_>>().join(", "));
        let row: Row = session.query_first(sql).await.unwrap().unwrap();
        let answers: Vec<String> = row.unwrap().into_iter().map(mysql_async::from_value).collect();
        assert_eq!(answers.len(), 4 * AT_ONCE);
        for ((a, b), answers) in pairs.iter().zip(answers.chunks(4)) {
            let (x, y): (GtidSet, GtidSet) = (a.parse().unwrap(), b.parse().unwrap());
            let ours = [
                x.to_string(),
                x.union(&y).to_string(),
                x.subtract(&y).to_string(),
                u8::from(y.contains(&x)).to_string(),
            ];
            // Between two servers mysqld breaks the line.
            let theirs: Vec<_> = answers.iter().map(|answer| answer.replace('\n', "")).collect();
            assert_eq!(ours[..], theirs, "FLEET_SEED={seed}: {a:?} and {b:?}");
            let intersection = x.subtract(&x.subtract(&y));
            assert_eq!(x.intersect(&y), intersection, "FLEET_SEED={seed}: {a:?} and {b:?}");
            assert_eq!(answers[2].parse(), Ok(x.subtract(&y)), "FLEET_SEED={seed}: {a:?} and {b:?}");
        }
    }
}
