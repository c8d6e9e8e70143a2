use super::*;

const PLANES: usize = 40;

fn flights() -> Flights {
    let mut text = b"columns\n".to_vec();
    for n in 0..400 {
        text.extend(format!("2013,1,1,5,5,2,8,8,{n},UA,{n},N{},EWR\n", n % PLANES).bytes());
    }
    Flights::parse(text)
}

fn written(flights: &Flights, placement: Placement) -> Read {
    let mut read = vec![Vec::new(); PARTITIONS];
    for (n, value) in flights.values().enumerate() {
        let (partition, key) = match placement {
            Placement::Explicit => (n % PARTITIONS, Vec::new()),
            Placement::Keyed => (n % PLANES % PARTITIONS, key_of(value).to_vec()),
        };
        let offset = read[partition].len() as u64;
        read[partition].push(Seen {
            offset,
            key,
            value: value.to_vec(),
        });
    }
    read
}

fn renumber(partition: &mut [Seen]) {
    partition
        .iter_mut()
        .enumerate()
        .for_each(|(n, seen)| seen.offset = n as u64);
}

#[track_caller]
fn refused(placement: Placement, damage: impl FnOnce(&mut Read), because: &str) {
    let flights = flights();
    let mut read = written(&flights, placement);
    damage(&mut read);
    let finding = judge(&flights, placement, &read).unwrap_err().to_string();
    assert!(finding.contains(because), "{finding}");
}

#[test]
fn the_input_itself_is_accepted() {
    let flights = flights();
    for placement in [Placement::Explicit, Placement::Keyed] {
        judge(&flights, placement, &written(&flights, placement)).unwrap();
    }
}

#[test]
fn every_kind_of_damage_is_refused() {
    for placement in [Placement::Explicit, Placement::Keyed] {
        refused(placement, |read| drop(read[3].pop()), "1 missing, 0 twice");
        let lose = |read: &mut Read| {
            read[3].remove(7);
            renumber(&mut read[3]);
        };
        refused(
            placement,
            lose,
            "1 missing, 0 twice or foreign; first difference at offset 7",
        );
        let twice = |read: &mut Read| {
            let again = read[2][5].clone();
            read[2].insert(6, again);
            renumber(&mut read[2]);
        };
        refused(
            placement,
            twice,
            "0 missing, 1 twice or foreign; first difference at offset 6",
        );
        let swap = |read: &mut Read| {
            read[1].swap(4, 9);
            renumber(&mut read[1]);
        };
        refused(
            placement,
            swap,
            "0 missing, 0 twice or foreign; first difference at offset 4",
        );
        refused(
            placement,
            |read| read[0][3].value[0] ^= 1,
            "1 missing, 1 twice or foreign",
        );
        refused(
            placement,
            |read| read[0][3].offset += 1,
            "record 3 is at offset 4",
        );
        refused(placement, |read| read[0][3].key = b"other".to_vec(), "key");
    }
}

#[test]
fn a_key_in_two_partitions_or_in_none_is_refused() {
    let move_last = |read: &mut Read| {
        let seen = read[3].pop().unwrap();
        read[4].push(seen);
    };
    refused(Placement::Keyed, move_last, "is in partitions 3 and 4");
    refused(
        Placement::Keyed,
        |read| read[6].clear(),
        "no key went to partition 6",
    );
    let forget = |read: &mut Read| read[0].retain(|seen| seen.key != b"N8");
    refused(Placement::Keyed, forget, "no record with key N8");
}

#[test]
fn lines_of_every_reader_are_understood() {
    let mut read = Read::new();
    parse(
        b"3\t17\t\ta,b\nPartition:3\tOffset:18\tnull\tc\td\n",
        &mut read,
    )
    .unwrap();
    parse(b"0\t0\tk\tv\n", &mut read).unwrap();
    let seen = |offset, key: &str, value: &str| Seen {
        offset,
        key: key.as_bytes().to_vec(),
        value: value.as_bytes().to_vec(),
    };
    assert_eq!(read[3], [seen(17, "", "a,b"), seen(18, "", "c\td")]);
    assert_eq!(read[0], [seen(0, "k", "v")]);
}

#[test]
fn lines_that_are_no_records_are_refused() {
    for line in [
        "",
        "8\t0\t\tv",
        "x\t0\t\tv",
        "0\t-1\t\tv",
        "0\t0\tv",
        "% Reached end",
    ] {
        let refused = parse(line.as_bytes(), &mut Read::new()).is_err();
        assert_eq!(refused, !line.is_empty(), "{line:?}");
    }
}
