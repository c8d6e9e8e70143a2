//! The admin HTTP surface.
