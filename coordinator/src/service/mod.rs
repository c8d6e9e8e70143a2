//! Drivers: check ownership, load, decide, persist, run effects, reply.
