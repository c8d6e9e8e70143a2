//! Pure state machines, volume files and services of the coordinator.
