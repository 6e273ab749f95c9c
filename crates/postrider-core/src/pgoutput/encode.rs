//! Writes the messages that the rest of this module reads.
//!
//! Postrider never sends them: property tests hold the parser to what is written here, and a simulated server speaks
//! through it.
