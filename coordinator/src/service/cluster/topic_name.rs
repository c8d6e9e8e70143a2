//! Which names a topic may have: Kafka's rules (`org.apache.kafka.common.internals.Topic`), and
//! the few names that the volume's layout takes for itself.

use crate::volume::layout;

/// Longest name, bytes: with a partition's suffix it still fits a file name.
const NAME_LEN_MAX: usize = 249;

/// What is wrong with a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is empty.
    #[error("a topic name can't be empty")]
    Empty,
    /// It is `.` or `..`.
    #[error("a topic name can't be \".\" or \"..\"")]
    Dots,
    /// It is too long.
    #[error("a topic name has at most {NAME_LEN_MAX} characters, this one has {0}")]
    TooLong(usize),
    /// It holds something else than ASCII letters, digits, `.`, `_` and `-`.
    #[error("a topic name has only ASCII letters, digits, '.', '_' and '-'; {0:?} has others")]
    IllegalCharacter(String),
    /// The volume's layout uses it.
    #[error("the name {0:?} is reserved")]
    Reserved(String),
}

/// Checks a name.
pub fn validate(name: &str) -> Result<(), NameError> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() {
        Err(NameError::Empty)
    } else if matches!(name, "." | "..") {
        Err(NameError::Dots)
    } else if name.len() > NAME_LEN_MAX {
        Err(NameError::TooLong(name.chars().count()))
    } else if !name.bytes().all(legal) {
        Err(NameError::IllegalCharacter(name.to_owned()))
    } else if layout::is_reserved(name) {
        Err(NameError::Reserved(name.to_owned()))
    } else {
        Ok(())
    }
}

/// What two colliding names have in common: metric names write `.` as `_`.
pub(super) fn folded(name: &str) -> String {
    name.replace('.', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kafkas() {
        for good in [
            "a",
            "A.b_c-9",
            "...",
            "-",
            "__consumer_offsets",
            &"x".repeat(249),
        ] {
            assert_eq!(validate(good), Ok(()), "{good}");
        }
        assert_eq!(validate(""), Err(NameError::Empty));
        assert_eq!(validate("."), Err(NameError::Dots));
        assert_eq!(validate(".."), Err(NameError::Dots));
        assert_eq!(validate(&"x".repeat(250)), Err(NameError::TooLong(250)));
        for bad in ["a/b", "ä", "a b", "a\0", "a+b", "~x", "a,b"] {
            assert_eq!(
                validate(bad),
                Err(NameError::IllegalCharacter(bad.to_owned()))
            );
        }
        for reserved in ["__cluster", "__store", "index"] {
            assert_eq!(
                validate(reserved),
                Err(NameError::Reserved(reserved.to_owned()))
            );
        }
    }

    #[test]
    fn dots_and_underscores_fold() {
        assert_eq!(folded("a.b_c"), folded("a_b.c"));
        assert_ne!(folded("a.b"), folded("a-b"));
    }
}
