//! Orders to an agent: how they are sent, and how often.

use std::{fmt, time::Duration};

use fleet_proto::agent::v1::{
    AdoptRequest, CloseRequest, Endpoint, FenceRequest, FollowRequest, OpenRequest, StartCloneRequest,
    agent_service_client::AgentServiceClient,
};
use tokio::time::{Instant, timeout};
use tonic::{Code, Status, transport::Channel};

/// How long an order may take. An order that waits for acknowledgements longer than that is given again.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long an order that was carried out is not given again, so that its effect can be seen first.
const AGAIN_AFTER_SUCCESS: Duration = Duration::from_secs(5);
/// How long an order that failed is not given again.
const AGAIN_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// An order of one term to one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The term.
    pub term: u64,
    /// What to do.
    pub kind: OrderKind,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// Follow a source.
    Follow {
        /// Its DNS name.
        host: String,
        /// Its port.
        port: u16,
        /// Whether to acknowledge.
        acknowledge: bool,
    },
    /// Take writes.
    Open {
        /// Acknowledgements that each commit waits for.
        required_acks: u32,
    },
    /// Take no writes, and receive none.
    Close,
    /// End mysqld, which boots closed.
    Fence,
    /// Commit empty transactions.
    Adopt {
        /// Their names.
        gtids: Vec<String>,
    },
    /// Copy a donor's data.
    Clone {
        /// The donor's DNS name.
        host: String,
        /// The donor's port.
        port: u16,
        /// Transactions that may be lost by it.
        expendable: String,
        /// Transactions whose logs are kept aside.
        archive: String,
    },
}

impl fmt::Display for OrderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Follow { host, acknowledge: true, .. } => write!(f, "follow {host} and acknowledge"),
            Self::Follow { host, .. } => write!(f, "follow {host}"),
            Self::Open { required_acks } => write!(f, "open with {required_acks} acknowledgements"),
            Self::Close => f.write_str("close"),
            Self::Fence => f.write_str("end mysqld"),
            Self::Adopt { gtids } => write!(f, "commit {} empty transactions", gtids.len()),
            Self::Clone { host, .. } => write!(f, "copy the data of {host}"),
        }
    }
}

/// How an order ended.
pub(super) enum Outcome {
    /// The agent has carried it out.
    Done,
    /// It has not, for this reason.
    Refused(String),
}

impl Order {
    pub(super) async fn send(&self, mut agent: AgentServiceClient<Channel>) -> Outcome {
        let term = self.term;
        let call = async {
            match self.kind.clone() {
                OrderKind::Follow { host, port, acknowledge } => agent
                    .follow(FollowRequest {
                        term,
                        source: Some(Endpoint { host, port: port.into() }),
                        acknowledge,
                    })
                    .await
                    .map(drop),
                OrderKind::Open { required_acks } => {
                    agent.open(OpenRequest { term, required_acks }).await.map(drop)
                }
                OrderKind::Close => agent.close(CloseRequest { term }).await.map(drop),
                OrderKind::Fence => agent.fence(FenceRequest { term }).await.map(drop),
                OrderKind::Adopt { gtids } => agent.adopt(AdoptRequest { term, gtids }).await.map(drop),
                OrderKind::Clone { host, port, expendable, archive } => agent
                    .start_clone(StartCloneRequest {
                        term,
                        donor: Some(Endpoint { host, port: port.into() }),
                        expendable_gtids: expendable,
                        archive_gtids: archive,
                    })
                    .await
                    .map(drop),
            }
        };
        match timeout(DEADLINE, call).await {
            Ok(Ok(())) => Outcome::Done,
            Ok(Err(status)) => Outcome::Refused(self.refusal(&status)),
            Err(_) => Outcome::Refused(format!("{}: not done within {DEADLINE:?}", self.kind)),
        }
    }

    /// Whether it is the same order again. What a copy may give up differs with every write of the donor.
    fn is_same_as(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (OrderKind::Clone { host, .. }, OrderKind::Clone { host: donor, .. }) => {
                (self.term, host) == (other.term, donor)
            }
            _ => self == other,
        }
    }

    /// Whether this order makes one that is under way pointless: it closes what that one opens, or is of a
    /// newer term.
    fn replaces(&self, other: &Self) -> bool {
        let closes = |order: &Self| match order.kind {
            OrderKind::Fence => 2,
            OrderKind::Close => 1,
            OrderKind::Follow { .. }
            | OrderKind::Open { .. }
            | OrderKind::Adopt { .. }
            | OrderKind::Clone { .. } => 0,
        };
        self.term > other.term || closes(self) > closes(other)
    }

    fn refusal(&self, status: &Status) -> String {
        match status.code() {
            Code::FailedPrecondition | Code::Aborted => format!("{}: {}", self.kind, status.message()),
            code => format!("{}: {code}: {}", self.kind, status.message()),
        }
    }
}

/// Which order was sent last, and how it went.
#[derive(Default)]
pub(super) struct Pace {
    last: Option<Sent>,
}

struct Sent {
    order: Order,
    end: Option<(Outcome, Instant)>,
}

impl Pace {
    /// Whether an order may be sent: none is under way but one that it takes the place of, and the same one
    /// has not ended just now.
    pub(super) fn may_send(&self, order: &Order, now: Instant) -> bool {
        match &self.last {
            None => true,
            Some(Sent { order: last, end: None }) => order.replaces(last),
            Some(Sent { order: last, end: Some((outcome, at)) }) => {
                let again_after = match outcome {
                    Outcome::Done => AGAIN_AFTER_SUCCESS,
                    Outcome::Refused(_) => AGAIN_AFTER_FAILURE,
                };
                !order.is_same_as(last) || now.saturating_duration_since(*at) >= again_after
            }
        }
    }

    pub(super) fn sent(&mut self, order: Order) {
        self.last = Some(Sent { order, end: None });
    }

    pub(super) fn ended(&mut self, outcome: Outcome, at: Instant) {
        if let Some(last) = &mut self.last {
            last.end = Some((outcome, at));
        }
    }

    /// Why the last order failed, if it did.
    pub(super) fn problem(&self) -> Option<String> {
        match &self.last {
            Some(Sent { end: Some((Outcome::Refused(reason), _)), .. }) => Some(reason.clone()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(term: u64) -> Order {
        Order { term, kind: OrderKind::Open { required_acks: 1 } }
    }

    #[test]
    fn one_order_at_a_time() {
        let mut pace = Pace::default();
        let now = Instant::now();
        assert!(pace.may_send(&open(1), now));
        pace.sent(open(2));
        assert!(!pace.may_send(&open(2), now + DEADLINE * 10));
        assert!(!pace.may_send(&open(1), now + DEADLINE * 10));
    }

    #[test]
    fn closing_and_a_newer_term_do_not_wait_for_an_order_under_way() {
        let mut pace = Pace::default();
        let now = Instant::now();
        pace.sent(open(1));
        assert!(pace.may_send(&Order { term: 1, kind: OrderKind::Close }, now));
        assert!(pace.may_send(&open(2), now));
    }

    #[test]
    fn the_same_order_waits_for_its_effect_and_another_does_not() {
        let mut pace = Pace::default();
        let now = Instant::now();
        pace.sent(open(1));
        pace.ended(Outcome::Done, now);
        assert!(!pace.may_send(&open(1), now));
        assert!(pace.may_send(&open(2), now));
        assert!(pace.may_send(&open(1), now + AGAIN_AFTER_SUCCESS));
    }

    #[test]
    fn a_copy_is_the_same_order_though_its_donor_has_gone_on() {
        let copy = |expendable: &str| Order {
            term: 1,
            kind: OrderKind::Clone {
                host: "donor".to_owned(),
                port: 3306,
                expendable: expendable.to_owned(),
                archive: String::new(),
            },
        };
        let mut pace = Pace::default();
        let now = Instant::now();
        pace.sent(copy("a:1-5"));
        pace.ended(Outcome::Refused("no archive".to_owned()), now);
        assert!(!pace.may_send(&copy("a:1-6"), now));
        assert!(pace.may_send(&copy("a:1-6"), now + AGAIN_AFTER_FAILURE));
    }

    #[test]
    fn a_refused_order_is_given_again_soon_and_its_reason_is_kept() {
        let mut pace = Pace::default();
        let now = Instant::now();
        pace.sent(open(1));
        pace.ended(Outcome::Refused("lag".to_owned()), now);
        assert_eq!(pace.problem().as_deref(), Some("lag"));
        assert!(!pace.may_send(&open(1), now));
        assert!(pace.may_send(&open(1), now + AGAIN_AFTER_FAILURE));
    }
}
