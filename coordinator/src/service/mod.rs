//! Services: ask a machine, persist, then answer.
