//! The differential runner: the same raw scripts play on Apache Kafka and on Fencepost, and every
//! field of every answer is compared.
//!
//! A script is one vector of the wire contract. It sends requests one by one; answers are decoded
//! by their schemas and told field by field, with ids, ports and times by their kind instead of
//! their value ([`fields`]). What it expects by literal codes is what Kafka does: there a miss is a
//! fault of the script, here it is a difference. Known differences are a file
//! (`tests/differential/known.toml`); one that is not there, or is there and gone, is a failure.

mod fields;
mod known;
mod play;
mod side;
mod vectors;

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};

pub use known::{Known, load};
pub use play::Play;
pub use side::Side;
pub use vectors::ALL;

use side::Setting;

/// A script by its name in the contract.
#[derive(Debug, Clone, Copy)]
pub struct Vector {
    /// As in the contract: `I01`.
    pub id: &'static str,
    /// What the brokers are set to.
    setting: Setting,
    script: play::Script,
    /// What plays after the broker was killed and started again.
    after_kill: Option<play::Script>,
}

/// In what two brokers differ on a vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The vector.
    pub vector: &'static str,
    /// The fields that differ, without the places in lists, each once.
    pub fields: Vec<String>,
    /// What differs, line by line.
    pub shown: String,
}

/// Plays vectors on fresh brokers of both kinds; the differences, in the order of the vectors.
///
/// # Errors
/// If a broker does not start, if a script can't be played, or if Apache Kafka does not do what a
/// script expects of it.
pub async fn run(vectors: &[Vector]) -> Result<Vec<Difference>> {
    let mut differences = Vec::new();
    let mut faults = Vec::new();
    for setting in Setting::ALL {
        let of_setting: Vec<Vector> = vectors
            .iter()
            .filter(|vector| vector.setting == setting)
            .copied()
            .collect();
        if of_setting.is_empty() {
            continue;
        }
        let kafka = tokio::spawn(play_all(setting, true, of_setting.clone()));
        let ours = play_all(setting, false, of_setting.clone()).await?;
        let kafka = kafka.await??;
        for ((vector, kafka), ours) in of_setting.iter().zip(kafka).zip(ours) {
            for missed in &kafka.missed {
                faults.push(format!("{}: {missed}", vector.id));
            }
            differences.extend(compare(vector.id, &kafka, &ours));
        }
    }
    ensure!(
        faults.is_empty(),
        "Apache Kafka does otherwise than the scripts say:\n{}",
        faults.join("\n")
    );
    Ok(differences)
}

async fn play_all(
    setting: Setting,
    is_kafka: bool,
    vectors: Vec<Vector>,
) -> Result<Vec<play::Record>> {
    let start = move || Side::start(setting, is_kafka);
    let mut side = tokio::task::spawn_blocking(start).await??;
    let (name, address) = (side.name(), side.address());
    let mut plays = Vec::new();
    for vector in &vectors {
        let mut play = Play::new(&address, vector.id).await?;
        let played = (vector.script)(&mut play).await;
        played.with_context(|| format!("{} on {name}", vector.id))?;
        plays.push(play);
    }
    if vectors.iter().any(|vector| vector.after_kill.is_some()) {
        let kill = move || side.kill_and_restart().map(|()| side);
        side = tokio::task::spawn_blocking(kill).await??;
        for (vector, play) in vectors.iter().zip(&mut plays) {
            if let Some(script) = vector.after_kill {
                play.again(1).await?;
                let played = script(play).await;
                played.with_context(|| format!("{} on {name}, after the kill", vector.id))?;
            }
        }
    }
    drop(side);
    Ok(plays.into_iter().map(Play::end_of_play).collect())
}

fn compare(vector: &'static str, kafka: &play::Record, ours: &play::Record) -> Option<Difference> {
    let mut fields = Vec::new();
    let mut shown = String::new();
    let count = kafka.steps.len().max(ours.steps.len());
    for number in 0..count {
        let (a, b) = (kafka.steps.get(number), ours.steps.get(number));
        let what = a.or(b).map_or("", |step| &step.what);
        let (Some(a), Some(b)) = (a, b) else {
            fields.push(what.to_owned());
            writeln!(shown, "  step {number} {what}: one of both has it").ok();
            continue;
        };
        for (path, kafka, ours) in fields::differing(&a.lines, &b.lines) {
            let field = format!("{what} {}", fields::without_places(&path));
            let field = field.trim_end().to_owned();
            if !fields.contains(&field) {
                fields.push(field);
            }
            let side = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
            let (kafka, ours) = (side(kafka), side(ours));
            let at = if path.is_empty() { "" } else { " " };
            // Writing to a string cannot fail.
            writeln!(
                shown,
                "  step {number} {what}{at}{path}: Kafka {kafka}, ours {ours}"
            )
            .ok();
        }
    }
    for missed in &ours.missed {
        writeln!(shown, "  {missed}").ok();
    }
    if fields.is_empty() && !ours.missed.is_empty() {
        fields.push("expected".to_owned());
    }
    (!fields.is_empty()).then_some(Difference {
        vector,
        fields,
        shown,
    })
}
