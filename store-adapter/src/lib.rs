//! Traits `Volume` and `LogStore`, their adapters, and the batch view.
