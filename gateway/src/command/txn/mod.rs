//! `fencepost txn`: transactions, in the words of Kafka's `kafka-transactions`.

mod hanging;
mod ids;
mod partitions;

use clap::{Args, Subcommand};

use super::client::{Client, Connect};
use super::output::{Failure, Format, help, render};
use hanging::FindHanging;
use ids::{Describe, ForceTerminate, List};
use partitions::{Abort, DescribeProducers};

/// Arguments of `fencepost txn`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Txn {
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
    /// Transactional ids of the cluster, with their states
    List(List),
    /// The transaction of a transactional id
    Describe(Describe),
    /// Producers that have written to a partition
    DescribeProducers(DescribeProducers),
    /// Transactions that are open on a partition and that no coordinator will end: exit code 1 if
    /// there are any
    FindHanging(FindHanging),
    /// End a transaction on a partition, whatever its coordinator knows; Fencepost takes this
    /// from the broker's own host
    Abort(Abort),
    /// Abort the transaction of a transactional id, and fence its producer
    ForceTerminate(ForceTerminate),
}

impl Txn {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<String, Failure> {
        let client = &mut Client::new(&self.connect);
        let format = self.format;
        if format == Format::Help {
            return self.verb.help();
        }
        match self.verb {
            Verb::List(verb) => render(&verb.run(client).await?, format),
            Verb::Describe(verb) => render(&verb.run(client).await?, format),
            Verb::DescribeProducers(verb) => render(&verb.run(client).await?, format),
            Verb::FindHanging(verb) => hanging::found(&verb.run(client).await?, format),
            Verb::Abort(verb) => render(&verb.run(client).await?, format),
            Verb::ForceTerminate(verb) => render(&verb.run(client).await?, format),
        }
    }
}

impl Verb {
    fn help(&self) -> Result<String, Failure> {
        match self {
            Self::List(_) => help::<ids::Listed>(),
            Self::Describe(_) => help::<ids::Described>(),
            Self::DescribeProducers(_) => help::<partitions::Writer>(),
            Self::FindHanging(_) => help::<hanging::Hanging>(),
            Self::Abort(_) => help::<partitions::Aborted>(),
            Self::ForceTerminate(_) => help::<ids::Terminated>(),
        }
    }
}

/// A cell of something that may not be there.
fn or_none(value: Option<i64>) -> String {
    value.map_or_else(|| "None".to_owned(), |value| value.to_string())
}
