use std::path::Path;

use super::*;
use crate::mutate::Dice;

const ROUNDS: usize = 3000;

fn seeds(name: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut seeds: Vec<_> = entries
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap()))
        .collect();
    seeds.sort();
    assert!(seeds.len() >= 12, "only {} seeds of {name}", seeds.len());
    seeds
}

#[test]
#[ignore = "needs root"]
fn mutants_of_layers_stay_inside_and_are_exported_unchanged() {
    let (env, seeds) = (TestEnv::default(), seeds("tar"));
    let whole = seeds.iter().filter(|(_, seed)| env.tar(seed)).count();
    assert!(whole >= seeds.len() / 2, "only {whole} seeds unpack");
    let mut dice = Dice::new(1);
    let mut unpacked = 0;
    for round in 0..ROUNDS {
        let (name, seed) = &seeds[round % seeds.len()];
        let (_, other) = &seeds[dice.below(seeds.len())];
        let mutant = mutate::tar(seed, other, &mut dice);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| env.tar(&mutant)));
        match outcome {
            Ok(whole) => unpacked += usize::from(whole),
            Err(_) => panic!("mutant of {name} in round {round}, kept as {}", keep(&mutant).display()),
        }
    }
    assert!(unpacked > ROUNDS / 10, "only {unpacked} of {ROUNDS} mutants unpack: too few for a useful test");
}

#[test]
fn mutants_of_documents_do_not_panic() {
    for (name, read) in [("manifest", manifest as fn(&[u8])), ("records", records), ("cdi", cdi)] {
        let seeds = seeds(name);
        seeds.iter().for_each(|(_, seed)| read(seed));
        let mut dice = Dice::new(2);
        for round in 0..ROUNDS * 4 {
            let (_, seed) = &seeds[round % seeds.len()];
            let (_, other) = &seeds[dice.below(seeds.len())];
            read(&mutate::text(seed, other, &mut dice));
        }
    }
}

#[test]
fn mutants_of_frames_do_not_panic_or_depend_on_piece_size() {
    for (name, read) in [("spdy", spdy as fn(&[u8])), ("websocket", websocket)] {
        let seeds = seeds(name);
        seeds.iter().for_each(|(_, seed)| read(seed));
        let mut dice = Dice::new(3);
        for round in 0..ROUNDS * 4 {
            let (_, seed) = &seeds[round % seeds.len()];
            let (_, other) = &seeds[dice.below(seeds.len())];
            read(&mutate::text(seed, other, &mut dice));
        }
    }
}

#[test]
fn mutants_of_netlink_and_cni_results_do_not_panic() {
    for (name, read) in [("netlink", netlink as fn(&[u8])), ("cni-result", cni_result)] {
        let seeds = seeds(name);
        seeds.iter().for_each(|(_, seed)| read(seed));
        let mut dice = Dice::new(4);
        for round in 0..ROUNDS * 4 {
            let (_, seed) = &seeds[round % seeds.len()];
            let (_, other) = &seeds[dice.below(seeds.len())];
            read(&mutate::text(seed, other, &mut dice));
        }
    }
}

#[test]
fn mutants_of_nri_messages_and_answers_do_not_panic() {
    for (name, read) in [("nri", nri as fn(&[u8])), ("nri-merge", nri_merge)] {
        let seeds = seeds(name);
        seeds.iter().for_each(|(_, seed)| read(seed));
        let mut dice = Dice::new(5);
        for round in 0..ROUNDS * 4 {
            let (_, seed) = &seeds[round % seeds.len()];
            let (_, other) = &seeds[dice.below(seeds.len())];
            read(&mutate::text(seed, other, &mut dice));
        }
    }
}

/// Saves a failed mutant for analysis and as a new seed.
fn keep(mutant: &[u8]) -> std::path::PathBuf {
    let (_, path) = tempfile::Builder::new().prefix("crisp-mutant.").tempfile().unwrap().keep().unwrap();
    std::fs::write(&path, mutant).unwrap();
    path
}
