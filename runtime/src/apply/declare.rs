//! Declaring some fields of an object that others have a say in, too.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{APPLY, Applier, ApplyError, Object, guarded, malformed, value};

impl Applier {
    /// Makes an object that is not there, by server-side apply, so that this manager declares its fields from the
    /// beginning.
    ///
    /// An object that somebody else has made in the meantime is not taken over: the apply is not forced, so that the
    /// API server refuses it (409) unless every field of it is as wanted.
    pub async fn introduce<K: Object>(&self, object: &K) -> Result<K, ApplyError> {
        let api = self.api(APPLY, object)?;
        let wanted = value(APPLY, object)?;
        let (name, params) = (object.name_any(), PatchParams::apply(self.manager));
        let patch = Patch::Apply(&wanted);
        self.send(APPLY, object, api.patch(&name, &params, &patch)).await
    }

    /// Declares exactly these fields of the live object (`metadata` and `spec` of it, as JSON) by server-side apply:
    /// they get these values whoever has set them, and those that this manager declared before and does not now go,
    /// unless somebody else declares them. Nothing is done if the object has changed, or was replaced, since `live`
    /// was read.
    pub async fn declare<K: Object>(&self, live: &K, fields: &Value) -> Result<K, ApplyError> {
        let api = self.api(APPLY, live)?;
        let uid = live.uid().ok_or_else(|| malformed(APPLY, live, "it has no uid"))?;
        let mut wanted = guarded(APPLY, live, fields.clone())?;
        for (key, value) in [("name", live.name_any()), ("uid", uid)] {
            if let Some(metadata) = wanted.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.insert(key.to_owned(), json!(value));
            }
        }
        if let Some(object) = wanted.as_object_mut() {
            object.insert("apiVersion".to_owned(), json!(K::api_version(&())));
            object.insert("kind".to_owned(), json!(K::kind(&())));
        }
        let (name, params) = (live.name_any(), PatchParams::apply(self.manager).force());
        let patch = Patch::Apply(&wanted);
        self.send(APPLY, live, api.patch(&name, &params, &patch)).await
    }
}
