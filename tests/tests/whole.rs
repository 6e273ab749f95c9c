//! Tests of the whole: the real binary as a process of its own, on a real PostgreSQL, against real endpoints.

mod access;
mod adoption;
mod bad_input;
mod branching;
mod definitions;
mod ending;
mod events;
mod failover;
mod fixture;
mod held;
mod idle;
mod kills;
mod life;
mod mapping;
mod outage;
mod pauses;
mod quiet;
mod races;
mod room;
mod same_tx;
mod servers;
mod sharing;
mod slot;
mod standby;
mod window;
