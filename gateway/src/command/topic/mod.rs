//! `fencepost topic`: topics, their partitions, configs and records, in the words of Kafka's
//! `kafka-topics`, `kafka-configs`, `kafka-get-offsets` and `kafka-delete-records`.

mod alter;
mod configs;
mod create;
mod delete;
mod records;
mod show;

use clap::{Args, Subcommand};

use super::client::{Client, Connect};
use super::output::{Failure, Format, Row, help, render};
use alter::Alter;
use configs::Configs;
use create::Create;
use delete::Delete;
use records::DeleteRecords;
use show::{Describe, List, Partitions};

/// Arguments of `fencepost topic`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Topic {
    #[command(flatten)]
    connect: Connect,
    /// How the outcome is printed
    #[arg(long, global = true, value_enum, default_value_t)]
    format: Format,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Clone, Subcommand)]
enum Verb {
    /// Topics of the cluster
    List(List),
    /// Create topics
    Create(Create),
    /// Topics with their sizes and the configs that are set on them
    Describe(Describe),
    /// Leaders, replicas and offsets of the partitions of topics
    Partitions(Partitions),
    /// Configs of topics
    Configs(Configs),
    /// Change configs of topics, or give them more partitions
    Alter(Alter),
    /// Delete topics with everything in them
    Delete(Delete),
    /// Delete the records of a topic below an offset
    DeleteRecords(DeleteRecords),
}

impl Topic {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<String, Failure> {
        let client = &mut Client::new(&self.connect);
        let format = self.format;
        if format == Format::Help {
            return self.verb.help();
        }
        match self.verb {
            Verb::List(verb) => render(&verb.run(client).await?, format),
            Verb::Create(verb) => verb.run(client).await?.print(format),
            Verb::Describe(verb) => render(&verb.run(client).await?, format),
            Verb::Partitions(verb) => render(&verb.run(client).await?, format),
            Verb::Configs(verb) => render(&verb.run(client).await?, format),
            Verb::Alter(verb) => verb.run(client).await?.print(format),
            Verb::Delete(verb) => verb.run(client).await?.print(format),
            Verb::DeleteRecords(verb) => verb.run(client).await?.print(format),
        }
    }
}

impl Verb {
    fn help(&self) -> Result<String, Failure> {
        match self {
            Self::List(_) => help::<show::Listed>(),
            Self::Create(_) => help::<create::Creation>(),
            Self::Describe(_) => help::<show::Described>(),
            Self::Partitions(_) => help::<show::PartitionState>(),
            Self::Configs(_) => help::<configs::Config>(),
            Self::Alter(_) => help::<alter::Alteration>(),
            Self::Delete(_) => help::<delete::Deleted>(),
            Self::DeleteRecords(_) => help::<records::Trimmed>(),
        }
    }
}

/// What was done, and what was refused beside it.
#[derive(Debug)]
struct Outcome<R> {
    done: Vec<R>,
    refused: Vec<Failure>,
}

impl<R: Row> Outcome<R> {
    fn new() -> Self {
        Self {
            done: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn put(&mut self, one: Result<R, Failure>) {
        match one {
            Ok(row) => self.done.push(row),
            Err(failure) => self.refused.push(failure),
        }
    }

    /// What is printed: also of a command that was refused in part.
    fn print(self, format: Format) -> Result<String, Failure> {
        if self.refused.is_empty() {
            return render(&self.done, format);
        }
        let reasons: Vec<String> = self.refused.iter().map(ToString::to_string).collect();
        let why = Failure::Refused(reasons.join("; "));
        if self.done.is_empty() {
            return Err(why);
        }
        Err(why.after(render(&self.done, format)?))
    }
}

/// Reads KEY=VALUE.
fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| "allowed is KEY=VALUE".to_owned())?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

/// Refuses a broker that does not say what became of something.
fn unanswered(what: &str) -> Failure {
    Failure::Refused(format!("{what}: no answer"))
}
