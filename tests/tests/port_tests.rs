//! Each suite of `postrider_tests::port_tests`, for the fakes of the simulation and for the real ports.

mod fake;
mod guards;
mod real;
