use proptest::prelude::*;

use super::*;
use crate::samples;

fn one() -> Vec<u8> {
    samples::batch(2).bytes().to_vec()
}

fn with(at: usize, field: &[u8]) -> Vec<u8> {
    let mut blob = one();
    blob[at..at + field.len()].copy_from_slice(field);
    blob
}

fn single(blob: &[u8]) -> Result<usize, BlobError> {
    single_batch(blob, true).map(<[u8]>::len)
}

#[test]
fn one_whole_batch_is_accepted() {
    assert_eq!(single_batch(&one(), true), Ok(&one()[..]));
}

#[test]
fn nothing_whole_is_refused() {
    assert_eq!(single(&[]), Err(BlobError::Empty));
    for len in [1, 11, 12, 16, 17, 60, one().len() - 1] {
        assert_eq!(
            single(&one()[..len]),
            Err(BlobError::Truncated),
            "{len} bytes"
        );
    }
}

#[test]
fn a_fragment_behind_the_batch_is_dropped() {
    let whole = one();
    for len in [1, 8, 11, 12, 16, 17, 30, whole.len() - 1] {
        let blob = [&whole[..], &whole[..len]].concat();
        assert_eq!(single(&blob), Ok(whole.len()), "{len} bytes");
    }
}

#[test]
fn two_batches_are_refused() {
    assert_eq!(single(&one().repeat(2)), Err(BlobError::SeveralBatches));
    assert_eq!(single(&one().repeat(3)), Err(BlobError::SeveralBatches));
}

#[test]
fn lengths_that_no_batch_has_are_refused() {
    for length in [-5, -1, 0, 13, i32::MIN] {
        assert_eq!(
            single(&with(8, &length.to_be_bytes())),
            Err(BlobError::BadLength(length))
        );
    }
    // Beyond what is there.
    let whole = i32::try_from(one().len()).unwrap() - 12;
    for length in [whole + 1, i32::MAX] {
        assert_eq!(
            single(&with(8, &length.to_be_bytes())),
            Err(BlobError::Truncated)
        );
    }
}

#[test]
fn a_length_without_room_for_the_header_is_refused() {
    let length_14 = &with(8, &14_i32.to_be_bytes())[..26];
    assert_eq!(single(length_14), Err(BlobError::NoHeader(26)));
    let length_38 = &with(8, &38_i32.to_be_bytes())[..50];
    assert_eq!(single(length_38), Err(BlobError::NoHeader(50)));
    // The CRC check refuses this one.
    let length_48 = &with(8, &48_i32.to_be_bytes())[..60];
    assert_eq!(single(length_48), Ok(60));
}

#[test]
fn magic_decides_the_format() {
    for magic in [3, 127, -1, -128] {
        let [byte] = i8::to_be_bytes(magic);
        assert_eq!(
            single(&with(16, &[byte])),
            Err(BlobError::UnknownMagic(magic))
        );
    }
    assert_eq!(single(&with(16, &[0])), Err(BlobError::OldMagic(0)));
    assert_eq!(single(&with(16, &[1])), Err(BlobError::OldMagic(1)));
}

#[test]
fn zstd_is_refused_before_a_second_batch() {
    let zstd = with(21, &[0, 4]);
    assert_eq!(single_batch(&zstd, true).map(<[u8]>::len), Ok(zstd.len()));
    assert_eq!(single_batch(&zstd, false), Err(BlobError::Zstd));
    assert_eq!(single_batch(&zstd.repeat(2), false), Err(BlobError::Zstd));
    assert!(single_batch(&with(21, &[0, 3]), false).is_ok());
}

#[test]
fn garbage_behind_the_batch_is_judged_like_a_batch() {
    let bad_length = [one(), with(8, &[0, 0, 0, 1])].concat();
    assert_eq!(single(&bad_length), Err(BlobError::BadLength(1)));
    let bad_magic = [one(), with(16, &[9])].concat();
    assert_eq!(single(&bad_magic), Err(BlobError::UnknownMagic(9)));
}

#[test]
fn batches_ends_after_an_error() {
    let blob = [one(), with(16, &[9]), one()].concat();
    let mut batches = Batches::new(&blob);
    assert_eq!(batches.next(), Some(Ok(&one()[..])));
    assert_eq!(batches.next(), Some(Err(BlobError::UnknownMagic(9))));
    assert_eq!(batches.next(), None);
}

proptest! {
    #[test]
    fn whole_batches_are_found_and_fragments_dropped(
        counts in prop::collection::vec(1..20_i32, 0..5), cut in 0..60_usize,
    ) {
        let mut blob: Vec<u8> = Vec::new();
        for count in &counts {
            blob.extend(samples::batch(*count).bytes());
        }
        blob.extend(&one()[..cut]);
        let found: Vec<usize> =
            Batches::new(&blob).map(|batch| batch.unwrap().len()).collect();
        let expected: Vec<usize> =
            counts.iter().map(|count| samples::batch(*count).bytes().len()).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn noise_never_panics(mut noise in prop::collection::vec(any::<u8>(), 0..300), sane: bool) {
        if sane && noise.len() > 16 {
            noise[8..12].copy_from_slice(&60_i32.to_be_bytes());
            noise[16] = 2;
        }
        let total: usize = Batches::new(&noise).map_while(Result::ok).map(<[u8]>::len).sum();
        prop_assert!(total <= noise.len());
        if let Ok(batch) = single_batch(&noise, true) {
            prop_assert!(batch.len() >= THROUGH_PRODUCER_ID);
        }
    }
}
