//! Replays the corpora of the fuzz targets: seeds, and every input that was ever a finding.

use std::fs;
use std::path::PathBuf;

#[path = "../../tests/fuzz/harness.rs"]
mod harness;

#[test]
fn every_input_of_every_corpus_is_survived() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus");
    for (target, run) in harness::TARGETS {
        let mut inputs = 0;
        for entry in fs::read_dir(root.join(target)).unwrap() {
            let path = entry.unwrap().path();
            let input = fs::read(&path).unwrap();
            println!("{}", path.display());
            run(&input);
            // What a client may cut or repeat.
            for cut in 0..input.len().min(256) {
                run(&input[..cut]);
            }
            inputs += 1;
        }
        assert!(inputs >= 10, "{target} has {inputs} inputs");
    }
}

#[test]
fn seeds_of_valid_requests_decode() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/request");
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("hostile-") {
            assert!(harness::decodes(&fs::read(&path).unwrap()), "{name}");
        }
    }
}
