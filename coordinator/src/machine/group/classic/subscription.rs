//! Topics of a consumer's protocol metadata: version, topics; what follows is not looked at.

use std::collections::BTreeSet;

/// Most topics that are looked at: names of few bytes take far more in memory.
const TOPICS_MAX: usize = 1 << 16;

/// Adds the topics of one member's `ConsumerProtocolSubscription`; `None` if the bytes are none,
/// or if the topics of all members are too many.
/// What a client may claim is bounded by the bytes that are there.
pub(super) fn topics(metadata: &[u8], into: &mut BTreeSet<String>) -> Option<()> {
    let mut rest = metadata;
    let version = i16::from_be_bytes(take(&mut rest)?);
    if version < 0 {
        return None;
    }
    let count = i32::from_be_bytes(take(&mut rest)?);
    for _ in 0..u32::try_from(count).ok()? {
        let length = usize::try_from(i16::from_be_bytes(take(&mut rest)?)).ok()?;
        let (name, after) = rest.split_at_checked(length)?;
        into.insert(std::str::from_utf8(name).ok()?.to_owned());
        if into.len() > TOPICS_MAX {
            return None;
        }
        rest = after;
    }
    Some(())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(metadata: &[u8]) -> Option<Vec<String>> {
        let mut found = BTreeSet::new();
        topics(metadata, &mut found)?;
        Some(found.into_iter().collect())
    }

    #[test]
    fn too_many_topics_are_as_unknown() {
        let names = |count: u32| {
            let mut metadata = b"\0\0".to_vec();
            metadata.extend(count.to_be_bytes());
            for name in 0..count {
                metadata.extend(b"\0\x08");
                metadata.extend(format!("{name:08x}").as_bytes());
            }
            metadata
        };
        assert_eq!(
            parse(&names(65_536)).map(|topics| topics.len()),
            Some(65_536)
        );
        assert_eq!(parse(&names(65_537)), None);
    }

    #[test]
    fn topics_are_read_and_nonsense_is_refused() {
        let good = b"\0\x01\0\0\0\x02\0\x01t\0\x02uv\xff\xff\xff\xff";
        assert_eq!(parse(good), Some(vec!["t".into(), "uv".into()]));
        assert_eq!(parse(b"\0\0\0\0\0\0"), Some(vec![]));
        for bad in [
            &b""[..],
            b"\0",
            b"\xff\xff\0\0\0\0",
            b"\0\0\xff\xff\xff\xff",
            b"\0\0\x7f\xff\xff\xff",
            b"\0\0\0\0\0\x01\x7f\xfft",
            b"\0\0\0\0\0\x01\xff\xfft",
            b"\0\0\0\0\0\x01\0\x01\xff",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
