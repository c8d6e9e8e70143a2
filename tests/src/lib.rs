//! The kit of the black-box suites.
