//! One JSON shape per file of the volume. A file that does not parse, or whose fields contradict
//! each other, is damaged: it is never used in part and never overwritten by a guess.
