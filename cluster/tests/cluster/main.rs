//! Clusters on loopback: in threads (`join`, `running`), as real processes (`processes`), and the handshake
//! against adversarial bytes (`handshake`). Names of tests are sentences; rows of the fault list stand
//! beside them.

mod handshake;
mod join;
mod processes;
mod running;
mod support;
