//! Plays the scripts of the wire contract on Apache Kafka and on Fencepost and prints in what they
//! differ: `cargo run -p tests --bin differential [VECTOR]...`
//!
//! Needs Java and, for the first run, Maven. `FENCEPOST_BIN` names the gateway; without it one is
//! built. Exits with 1 if the differences are not exactly those of `tests/differential/known.toml`.

use std::process::ExitCode;

use clap::Parser;
use tests::differential::{ALL, Vector, load, run};

#[derive(Parser)]
struct Arguments {
    /// Names of vectors, as `I01`; all without any.
    vectors: Vec<String>,
    /// Lists the vectors instead.
    #[arg(long)]
    list: bool,
}

#[allow(clippy::print_stdout, reason = "what it is for")]
fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.list {
        for vector in ALL {
            println!("{}", vector.id);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let named = |vector: &Vector| {
        let names = &arguments.vectors;
        names.is_empty() || names.iter().any(|name| *name == vector.id)
    };
    let vectors: Vec<Vector> = ALL.iter().filter(|one| named(one)).copied().collect();
    let unknown = arguments
        .vectors
        .iter()
        .find(|name| !ALL.iter().any(|one| one.id == **name));
    if let Some(unknown) = unknown {
        anyhow::bail!("there is no vector {unknown}: --list shows them");
    }
    let known = load()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let found = runtime.block_on(run(&vectors))?;
    for difference in &found {
        let why = known.reason(difference.vector).unwrap_or("NOT KNOWN");
        println!("{}: {why}\n{}", difference.vector, difference.shown);
    }
    let played: Vec<&str> = vectors.iter().map(|vector| vector.id).collect();
    let complaints = known.complaints(&played, &found);
    for complaint in &complaints {
        println!("not as known: {complaint}");
    }
    println!("{} vectors, {} differ", vectors.len(), found.len());
    Ok(if complaints.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
