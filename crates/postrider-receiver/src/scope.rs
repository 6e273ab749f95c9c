//! What: the part of the store that a key belongs to.
//! Where: first half of the key of `postrider_receiver.idempotency_keys`.
//! Takes and gives: tenant, method and route; one text for the three.
//! Never: lets two triples share a text.

use std::fmt;

/// Tenant, method and route of a request: the same key of another tenant, or on another route, is another key.
///
/// The SQL function `postrider_receiver.request_scope` writes the same text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope(String);

impl Scope {
    /// Writes a scope. A service of one tenant gives an empty one; `route` is the route's pattern, not the request's path.
    pub fn new(tenant: &str, method: &str, route: &str) -> Scope {
        Scope(format!("{} {} {tenant}", escape(method), escape(route)))
    }

    /// The scope as the store keeps it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn escape(part: &str) -> String {
    part.replace('%', "%25").replace(' ', "%20")
}

#[cfg(test)]
mod tests {
    use super::Scope;

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_eq!(Scope::new("acme", "POST", "/stages/{stage}").as_str(), "POST /stages/{stage} acme");
        assert_ne!(Scope::new("c", "POST", "/a b"), Scope::new("b c", "POST", "/a"));
        assert_ne!(Scope::new("c", "POST", "/a%20b"), Scope::new("c", "POST", "/a b"));
    }
}
