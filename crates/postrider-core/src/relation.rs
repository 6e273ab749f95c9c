//! Tables as the log describes them, remembered by oid.

use crate::pgoutput;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// A table at one time of its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    pub oid: u32,
    pub schema: String,
    pub name: String,
    pub replica_identity: ReplicaIdentity,
    /// In the order of the tuples: published columns only, dropped ones left out.
    pub columns: Vec<Column>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub type_oid: u32,
    /// `atttypmod`; -1 where the type has none.
    pub type_modifier: i32,
    /// The column belongs to the replica identity; under FULL every column does.
    pub key: bool,
}

/// What the log says of the version before an update or a delete (`pg_class.relreplident`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// `d`: the primary key, if there is one.
    Default,
    /// `n`
    Nothing,
    /// `f`: the whole row.
    Full,
    /// `i`: the columns of an index.
    Index,
}

/// A type that is not built in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedType {
    pub schema: String,
    pub name: String,
}

/// The tables and types in force at one place of the log.
#[derive(Debug, Clone, Default)]
pub struct Relations {
    tables: OidMap<Arc<Relation>>,
    types: OidMap<NamedType>,
}

/// A map by oid. Its hash is fixed, so that a run repeats itself; its order is never read.
pub(crate) type OidMap<V> = HashMap<u32, V, BuildHasherDefault<OidHasher>>;

/// Spreads an oid over 64 bits by one multiplication. Oids come from the server's counter: nobody chooses them to collide.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OidHasher(u64);

impl Relation {
    /// The index of a column by its name.
    pub fn column_index(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    fn from_message(message: &pgoutput::Relation<'_>) -> Relation {
        Relation {
            oid: message.oid,
            schema: if message.schema.is_empty() { "pg_catalog" } else { message.schema }.to_owned(),
            name: message.name.to_owned(),
            replica_identity: message.replica_identity,
            columns: message
                .columns()
                .map(|column| Column {
                    name: column.name.to_owned(),
                    type_oid: column.type_oid,
                    type_modifier: column.type_modifier,
                    key: column.key,
                })
                .collect(),
        }
    }
}

impl ReplicaIdentity {
    /// From the letter in the message and the catalogue.
    pub fn from_marker(marker: u8) -> Option<ReplicaIdentity> {
        match marker {
            b'd' => Some(ReplicaIdentity::Default),
            b'n' => Some(ReplicaIdentity::Nothing),
            b'f' => Some(ReplicaIdentity::Full),
            b'i' => Some(ReplicaIdentity::Index),
            _ => None,
        }
    }

    /// The letter in the message and the catalogue.
    pub fn marker(self) -> u8 {
        match self {
            ReplicaIdentity::Default => b'd',
            ReplicaIdentity::Nothing => b'n',
            ReplicaIdentity::Full => b'f',
            ReplicaIdentity::Index => b'i',
        }
    }
}

impl Relations {
    pub fn new() -> Relations {
        Relations::default()
    }

    /// Takes a RELATION message. The server repeats one whenever it may have changed; where nothing has, the table
    /// stays the same [`Arc`], so that what was derived from it stays valid.
    pub fn apply_relation(&mut self, message: &pgoutput::Relation<'_>) {
        let relation = Relation::from_message(message);
        match self.tables.get(&message.oid) {
            Some(known) if **known == relation => {}
            _ => {
                self.tables.insert(message.oid, Arc::new(relation));
            }
        }
    }

    /// Takes a TYPE message.
    pub fn apply_type(&mut self, message: &pgoutput::DataType<'_>) {
        let named = NamedType { schema: message.schema.to_owned(), name: message.name.to_owned() };
        self.types.insert(message.oid, named);
    }

    #[inline]
    pub fn table(&self, oid: u32) -> Option<&Arc<Relation>> {
        self.tables.get(&oid)
    }

    pub fn named_type(&self, oid: u32) -> Option<&NamedType> {
        self.types.get(&oid)
    }
}

impl Hasher for OidHasher {
    #[inline]
    fn write_u32(&mut self, oid: u32) {
        self.0 = u64::from(oid).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
