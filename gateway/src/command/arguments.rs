//! Arguments, and the settings that they, the environment and the file make together.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use gateway::config::{
    Config, ConfigError, FileForm, Origin, Settings, Unused, read_environment, read_file,
};

use super::configuration::{CheckConfig, Configuration};
use super::consume::Consume;
use super::doctor::Doctor;
use super::group::Group;
use super::health::Health;
use super::produce::Produce;
use super::store::Store;
use super::topic::Topic;
use super::txn::Txn;

/// Kafka protocol gateway in front of a log store.
#[derive(Debug, Parser)]
#[command(name = "fencepost", version, args_conflicts_with_subcommands = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run a broker; this is what happens without a command, too
    Serve(Serve),
    /// Say whether a configuration can be used, and what each key of it does
    CheckConfig(CheckConfig),
    /// The configuration with its origins, and what its keys mean
    Config(Configuration),
    /// Print the records of a topic
    Consume(Consume),
    /// Look for what keeps clients from using a cluster
    Doctor(Doctor),
    /// Consumer groups of a cluster
    Group(Group),
    /// Ask a broker whether it is well
    Health(Health),
    /// Write records to a topic
    Produce(Produce),
    /// The store of a broker that does not run
    Store(Store),
    /// Topics of a cluster
    Topic(Topic),
    /// Transactions of a cluster
    Txn(Txn),
}

#[derive(Debug, Clone, Default, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    pub(super) sources: Sources,
    /// Print one line of JSON with the addresses when ready
    #[arg(long)]
    pub(super) print_addresses: bool,
    /// Say whether this configuration can be used, as check-config does, and exit
    #[arg(long)]
    pub(super) check_config: bool,
}

/// Where the configuration comes from.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct Sources {
    /// Configuration file: server.properties, or TOML
    config: Option<PathBuf>,
    /// The file is in the form of server.properties, whatever its name
    #[arg(long, requires = "config")]
    properties: bool,
    /// Refuse keys that have no effect or are not known
    #[arg(long)]
    strict_config: bool,
    /// Where everything is kept (log.dirs) [default: data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// This broker's number (node.id) [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    broker_id: Option<String>,
    /// Where records are kept: sled:, sled:?layout=kv, memory: or strict: (store) [default: sled:]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Health, metrics, transactions over HTTP (admin.listen) [default: 127.0.0.1:9644]
    #[arg(long, value_name = "HOST:PORT")]
    admin_listen: Option<String>,
    /// File with the token that callers of the admin port must show (admin.token.file)
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<String>,
    /// Let callers of the admin port inject faults (enable.faults)
    #[arg(long)]
    enable_faults: bool,
    /// Local directory of the index (index.dir) [default: index in the data directory]
    #[arg(long, value_name = "DIR")]
    index_dir: Option<String>,
    /// Set any key of the configuration; can be repeated
    #[arg(long = "override", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Log lines: pretty, json, logfmt (logging.format) [default: pretty on a terminal, else json]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// What is logged: LEVEL or TARGET=LEVEL,... (logging.filter; also RUST_LOG) [default: info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

impl Arguments {
    /// What is to be done; without a command, a broker is run.
    pub(super) fn command(self) -> Command {
        self.command.unwrap_or(Command::Serve(self.serve))
    }
}

impl Sources {
    /// All settings, a later source over an earlier one.
    pub(super) fn settings(
        &self,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Settings, ConfigError> {
        let environment: Vec<_> = environment.into_iter().collect();
        let mut settings = Settings::default();
        if let Some(file) = &self.config {
            let form = if self.properties {
                FileForm::Properties
            } else {
                FileForm::of(file)
            };
            read_file(&mut settings, file, form)?;
        }
        if let Some((name, filter)) = environment.iter().find(|(name, _)| name == "RUST_LOG") {
            let origin = Origin::Environment(name.clone());
            settings.set("logging.filter", filter, origin);
        }
        read_environment(&mut settings, environment);
        for text in &self.overrides {
            let (key, value) = text
                .split_once('=')
                .ok_or_else(|| ConfigError::Override(text.clone()))?;
            settings.set(key.trim(), value, Origin::Flag("--override"));
        }
        for (flag, key, value) in [
            ("--data-dir", "log.dirs", &self.data_dir),
            ("--broker-id", "node.id", &self.broker_id),
            ("--store", "store", &self.store),
            ("--admin-listen", "admin.listen", &self.admin_listen),
            (
                "--admin-token-file",
                "admin.token.file",
                &self.admin_token_file,
            ),
            ("--index-dir", "index.dir", &self.index_dir),
            ("--log-format", "logging.format", &self.log_format),
            ("--log", "logging.filter", &self.log),
        ] {
            if let Some(value) = value {
                settings.set(key, value, Origin::Flag(flag));
            }
        }
        if self.enable_faults {
            settings.set("enable.faults", "true", Origin::Flag("--enable-faults"));
        }
        Ok(settings)
    }

    /// The configuration that a broker of these settings has.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn config(&self, settings: &Settings) -> Result<Config, ConfigError> {
        let config = Config::new(settings)?;
        if self.strict_config && !settings.unused().is_empty() {
            let unused = settings.unused().iter();
            let all: Vec<String> = unused.map(Unused::to_string).collect();
            return Err(ConfigError::Strict(all.join("; ")));
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(arguments: &[&str]) -> Sources {
        let arguments = std::iter::once(&"fencepost").chain(arguments);
        match Arguments::try_parse_from(arguments).unwrap().command() {
            Command::Serve(serve) => serve.sources,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn serve_is_the_default_command() {
        for arguments in [
            &[
                "serve",
                "--data-dir",
                "/d",
                "--override",
                "num.partitions=3",
            ][..],
            &["--data-dir", "/d", "--override", "num.partitions=3"],
        ] {
            let settings = serve(arguments).settings(Vec::new()).unwrap();
            assert_eq!(settings.get("log.dirs").value, "/d");
            assert_eq!(settings.get("num.partitions").value, "3");
        }
        for arguments in [&["serve", "server.properties"][..], &["server.properties"]] {
            assert_eq!(
                serve(arguments).config,
                Some(PathBuf::from("server.properties"))
            );
        }
    }

    #[test]
    fn flags_win_over_overrides_and_those_over_the_environment() {
        let environment = [("FENCEPOST_NODE_ID", "1"), ("FENCEPOST_STORE", "memory:")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let arguments = [
            "--override",
            "node.id=2",
            "--override=store=sled:",
            "--broker-id",
            "3",
        ];
        let settings = serve(&arguments).settings(environment).unwrap();
        assert_eq!(settings.get("node.id").value, "3");
        assert_eq!(settings.get("store").value, "sled:");
        let error = serve(&["--override", "x"])
            .settings(Vec::new())
            .unwrap_err();
        assert_eq!(error, ConfigError::Override("x".to_owned()));
    }

    #[test]
    fn the_filter_comes_from_rust_log_unless_a_key_says_otherwise() {
        let variables = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect()
        };
        let settings = serve(&[])
            .settings(variables(&[("RUST_LOG", "debug")]))
            .unwrap();
        assert_eq!(settings.get("logging.filter").value, "debug");
        let both = variables(&[("RUST_LOG", "debug"), ("FENCEPOST_LOGGING_FILTER", "warn")]);
        let settings = serve(&[]).settings(both).unwrap();
        assert_eq!(settings.get("logging.filter").value, "warn");
    }
}
