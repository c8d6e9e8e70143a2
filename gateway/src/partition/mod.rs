//! One partition that this broker leads.

pub mod validate;
