//! Names on the volume: relative, `/` between components, never leaving the tree.

use std::fmt;

/// A path relative to the volume's root. Cannot hold `..`, empty components or NUL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumePath(String);

impl VolumePath {
    /// The root of the volume.
    pub fn root() -> Self {
        Self(String::new())
    }

    /// This path with `name` below it. A name that could leave the directory is written so that
    /// it cannot: `/` and `\0` become percent escapes, as do the dots of `.` and `..`.
    pub fn join(&self, name: &str) -> Self {
        let mut path = self.0.clone();
        if !path.is_empty() {
            path.push('/');
        }
        if matches!(name, "" | "." | "..") {
            path.push_str(if name.is_empty() {
                "%"
            } else {
                &"%2E%2E"[..3 * name.len()]
            });
        } else {
            for c in name.chars() {
                match c {
                    '/' => path.push_str("%2F"),
                    '\0' => path.push_str("%00"),
                    c => path.push(c),
                }
            }
        }
        Self(path)
    }

    /// The directory that holds this name; the root's parent is the root.
    pub fn parent(&self) -> Self {
        Self(
            self.0
                .rsplit_once('/')
                .map(|(dir, _)| dir.to_owned())
                .unwrap_or_default(),
        )
    }

    /// The last component; empty for the root.
    pub fn file_name(&self) -> &str {
        self.0
            .rsplit_once('/')
            .map_or(self.0.as_str(), |(_, name)| name)
    }

    /// The path as text, without a leading `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leaves_its_directory() {
        let dir = VolumePath::root().join("a");
        for name in ["..", ".", "", "../x", "/etc", "a\0b"] {
            let path = dir.join(name);
            assert_eq!(path.parent(), dir, "{name:?} became {path}");
            assert!(!matches!(path.file_name(), "" | "." | ".."), "{name:?}");
        }
        assert_eq!(dir.join("b").join("c").as_str(), "a/b/c");
        assert_eq!(dir.join("b").parent().parent(), VolumePath::root());
        assert_eq!(dir.join("b.json").file_name(), "b.json");
    }
}
