//! Which objects something has changed for, until the controller takes them up.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{Stream, stream};
use tokio::sync::Notify;

/// Names of objects to look at, each with its namespace where the controller works for more than one, else with an
/// empty one. Each is held once however often it is marked, so nothing is
/// lost and nothing grows beyond the number of objects. Clones share their names.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    names: Mutex<BTreeSet<(String, String)>>,
    news: Notify,
}

impl Changed {
    /// Says that something has changed for an object of the controller's namespace, or one without a namespace.
    pub fn mark(&self, name: &str) {
        self.mark_in("", name);
    }

    /// Says that something has changed for an object of any namespace.
    pub fn mark_in(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        self.inner.names.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        self.inner.news.notify_one();
    }

    /// Namespaces and names, as they are marked. There must be one stream only.
    pub fn stream(&self) -> impl Stream<Item = (String, String)> + Send + 'static {
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
        let key = |namespace: &str, name: &str| Some((namespace.to_owned(), name.to_owned()));
        assert_eq!(names.next().await, key("", "invoices"));
        assert_eq!(names.next().await, key("", "orders"));
        changed.mark_in("tenant-a", "orders");
        assert_eq!(names.next().await, key("tenant-a", "orders"));
    }
}
