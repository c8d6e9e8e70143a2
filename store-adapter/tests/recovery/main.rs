//! What the journal makes of torn, damaged, lost and failing files.

mod faults;
mod index;
mod support;
mod torn;
