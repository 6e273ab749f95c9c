//! The rules of the house that no compiler holds.
