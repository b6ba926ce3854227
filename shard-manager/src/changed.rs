//! Which clusters something has changed for, until the controller takes them up.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{Stream, stream};
use tokio::sync::Notify;

/// Names of clusters to look at. Each is held once however often it is marked, so nothing is lost and
/// nothing grows beyond the number of clusters. Clones share their names.
#[derive(Clone, Default)]
pub struct Changed {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    names: Mutex<BTreeSet<String>>,
    news: Notify,
}

impl Changed {
    /// Says that something has changed for a cluster.
    pub fn mark(&self, cluster: &str) {
        self.inner.names.lock().unwrap_or_else(PoisonError::into_inner).insert(cluster.to_owned());
        self.inner.news.notify_one();
    }

    /// The names, as they are marked. There must be one stream only.
    pub fn stream(&self) -> impl Stream<Item = String> + Send + 'static {
        stream::unfold(Arc::clone(&self.inner), |inner| async move {
            loop {
                let next = inner.names.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
                match next {
                    Some(name) => return Some((name, inner)),
                    None => inner.news.notified().await,
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn a_name_is_told_once_for_all_its_marks_before() {
        let changed = Changed::default();
        for name in ["orders", "orders", "invoices", "orders"] {
            changed.mark(name);
        }
        let mut names = Box::pin(changed.stream());
        assert_eq!(names.next().await.as_deref(), Some("invoices"));
        assert_eq!(names.next().await.as_deref(), Some("orders"));
        changed.mark("orders");
        assert_eq!(names.next().await.as_deref(), Some("orders"));
    }
}
