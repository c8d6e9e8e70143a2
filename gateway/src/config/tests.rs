use super::*;

fn settings(pairs: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    for (key, value) in pairs {
        settings.set(key, value, Origin::Library);
    }
    settings
}

fn config(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::new(&settings(pairs))
}

#[test]
fn defaults_are_those_of_kafka_and_design() {
    let config = config(&[]).unwrap();
    assert_eq!(config.broker_id, BrokerId(0));
    assert_eq!(config.listeners[0].bind.host, "127.0.0.1");
    assert_eq!(config.listeners[0].bind.port, 9092);
    assert_eq!(config.listeners[0].advertised, config.listeners[0].bind);
    assert_eq!(config.admin.to_string(), "127.0.0.1:9644");
    assert_eq!(config.data_dir, Path::new("data"));
    assert_eq!(config.index_dir, Path::new("data/index"));
    assert_eq!(
        (config.store.clone(), config.durability()),
        (StoreKind::Sled, "fsync")
    );
    assert_eq!(config.broker.num_partitions, 1);
    assert_eq!(config.broker.virtual_replicas, 1);
    assert!(config.broker.auto_create_topics);
    assert_eq!(config.broker.producer_id_expiration_ms, 86_400_000);
    assert_eq!(
        config.broker.producer_id_check_interval,
        Duration::from_mins(10)
    );
    assert_eq!(config.broker.fetch_max_bytes, 57_671_680);
    assert_eq!(config.broker.fetch_session_slots, 1000);
    assert_eq!(config.broker.queued_response_bytes, 128 << 20);
    assert_eq!(config.broker.topic_defaults.max_message_bytes, 1_048_588);
    assert_eq!(
        config.broker.topic_defaults.timestamp_after_max_ms,
        3_600_000
    );
    assert_eq!(config.frame_max, 104_857_600);
    assert_eq!(config.limits.idle, Duration::from_mins(10));
    assert!(config.warnings.is_empty());
}

#[test]
fn every_default_in_the_table_is_allowed_and_no_name_comes_twice() {
    let mut names = std::collections::BTreeSet::new();
    for key in keys::all() {
        for name in std::iter::once(&key.name).chain(key.aliases) {
            assert!(names.insert(*name), "{name} comes twice");
        }
        if key.effect == keys::Effect::Used {
            settings(&[(key.name, key.default)]).check().unwrap();
            assert!(!key.doc.is_empty(), "{} has no line for the docs", key.name);
        }
    }
}

#[test]
fn wrong_values_say_which_where_and_what_is_allowed() {
    for (key, value, allowed) in [
        ("num.partitions", "zero", "a whole number from 1 to 10000"),
        ("num.partitions", "0", "a whole number from 1 to 10000"),
        ("node.id", "8191", "a whole number from 0 to 8190"),
        ("node.id", "", "a whole number from 0 to 8190"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("flush.policy", "never", "fsync or os"),
        (
            "log.cleanup.policy",
            "sweep",
            "delete or compact or compact,delete or delete,compact or nothing",
        ),
        (
            "log.cleaner.min.cleanable.ratio",
            "2",
            "a number from 0 to 1",
        ),
        (
            "store",
            "tape:",
            "sled:, sled:?layout=kv, memory: or strict:",
        ),
        (
            "store",
            "sled",
            "sled:, sled:?layout=kv, memory: or strict:",
        ),
        (
            "store",
            "sled:?layout=heap",
            "sled:, sled:?layout=kv, memory: or strict:",
        ),
        (
            "store",
            "memory:here",
            "sled:, sled:?layout=kv, memory: or strict:",
        ),
        (
            "store",
            "strict:?uncertain=",
            "sled:, sled:?layout=kv, memory: or strict:",
        ),
        ("log.dirs", "/a,/b", "one directory"),
        ("queued.max.request.bytes", "1000", "-1 or at least 1048576"),
        (
            "socket.request.max.bytes",
            "104857601",
            "a whole number from 1024 to 104857600",
        ),
        ("admin.listen", "9644", "HOST:PORT"),
        (
            "admin.listen",
            "0.0.0.0:9644",
            "a loopback address, such as 127.0.0.1:9644; any other needs --admin-token-file: \
             without it the admin port has no authentication",
        ),
        (
            "admin.token.file",
            "/nowhere/at/all",
            "a file with a token (No such file or directory (os error 2))",
        ),
    ] {
        let error = config(&[(key, value)]).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("{key} = {value:?} (library): allowed is {allowed}")
        );
    }
}

#[test]
fn aliases_and_prefixes_name_the_same_keys() {
    let config = config(&[
        ("broker.id", "7"),
        ("log.dir", "/d"),
        ("store", "sled:///d"),
        ("message.timestamp.type", "LogAppendTime"),
        ("AUTO.CREATE", "x"),
    ]);
    let config = config.unwrap();
    assert_eq!(config.broker_id, BrokerId(7));
    assert_eq!(config.data_dir, Path::new("/d"));
    assert_eq!(
        config.broker.topic_defaults.timestamp_type,
        TimestampType::LogAppendTime
    );
    assert_eq!(config.warnings.len(), 1);
}

#[test]
fn the_store_may_name_the_data_directory_but_not_contradict_it() {
    let data_dir = |pairs| config(pairs).map(|config| config.data_dir);
    assert_eq!(data_dir(&[("store", "sled:./x")]), Ok(PathBuf::from("./x")));
    assert_eq!(
        data_dir(&[("store", "sled:x"), ("log.dirs", "x")]),
        Ok(PathBuf::from("x"))
    );
    assert!(data_dir(&[("store", "sled:x"), ("log.dirs", "y")]).is_err());
    assert_eq!(
        config(&[("store", "memory:")]).unwrap().durability(),
        "memory"
    );
    assert_eq!(
        config(&[("flush.policy", "os")]).unwrap().durability(),
        "os"
    );
}

#[test]
fn the_store_may_have_an_option() {
    let store = |url| config(&[("store", url)]).map(|config| (config.store, config.data_dir));
    let data = PathBuf::from("data");
    assert_eq!(
        store("sled:?layout=journal"),
        Ok((StoreKind::Sled, data.clone()))
    );
    let root = PathBuf::from("x");
    assert_eq!(
        store("sled:x?layout=kv"),
        Ok((StoreKind::Kv { root: root.clone() }, root))
    );
    let strict = |uncertain_every| StoreKind::Strict { uncertain_every };
    assert_eq!(store("strict:"), Ok((strict(0), data.clone())));
    assert_eq!(store("strict:?uncertain=7"), Ok((strict(7), data)));
}

#[test]
fn warnings_name_the_reason_or_the_likely_meaning_once() {
    let mut settings = Settings::default();
    for _ in 0..2 {
        for key in [
            "process.roles",
            "log.roll.jitter.ms",
            "num.partition",
            "no.such.thing",
        ] {
            settings.set(key, "1", Origin::File("f".to_owned(), 3));
        }
    }
    let expected = [
        "process.roles (file f line 3) is ignored because every broker can be the controller",
        "log.roll.jitter.ms (file f line 3) is ignored because segments have no files of their own",
        "num.partition (file f line 3) is not a known key; did you mean num.partitions?",
        "no.such.thing (file f line 3) is not a known key",
    ];
    assert_eq!(settings.warnings(), expected);
}

#[test]
fn later_layers_win() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("server.properties");
    let text = "node.id=1\nnum.partitions=2\nlog.dirs=/file\nfetch.max.bytes=2000\n";
    io::Write::write_all(&mut std::fs::File::create(&file).unwrap(), text.as_bytes()).unwrap();
    let mut settings = Settings::default();
    read_file(&mut settings, &file, FileForm::of(&file)).unwrap();
    let variables = [
        ("FENCEPOST_NUM_PARTITIONS", "4"),
        ("KAFKA_NUM_PARTITIONS", "3"),
        ("KAFKA_LOG_DIRS", "/kafka"),
        ("KAFKA_NODE_ID", "5"),
        ("KAFKA_HEAP_OPTS", "-Xmx1G"),
        ("HOME", "/root"),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    read_environment(&mut settings, variables);
    settings.set("node.id", "6", Origin::Flag("--broker-id"));
    assert_eq!(settings.get("node.id").origin, Origin::Flag("--broker-id"));
    assert_eq!(settings.get("num.partitions").value, "4");
    assert_eq!(
        settings
            .get("fetch.max.bytes")
            .origin
            .to_string()
            .split(' ')
            .next_back(),
        Some("4")
    );
    assert!(settings.warnings().is_empty());
    let config = Config::new(&settings).unwrap();
    assert_eq!(config.broker_id, BrokerId(6));
    assert_eq!(config.data_dir, Path::new("/kafka"));
}

#[test]
fn files_that_cannot_be_read_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.toml");
    let error = read_file(&mut Settings::default(), &missing, FileForm::Toml).unwrap_err();
    assert!(error.to_string().contains("missing.toml"), "{error}");
    let broken = dir.path().join("broken.toml");
    io::Write::write_all(&mut std::fs::File::create(&broken).unwrap(), b"a = \n").unwrap();
    let error = read_file(&mut Settings::default(), &broken, FileForm::of(&broken)).unwrap_err();
    assert!(error.to_string().contains("line 1"), "{error}");
}

fn listeners_of(pairs: &[(&str, &str)]) -> Result<Vec<(String, String, String)>, String> {
    let show = |endpoint: &Endpoint| format!("{}:{}", endpoint.host, endpoint.port);
    listeners::listeners(&settings(pairs), || Some("host.example".to_owned()))
        .map(|listeners| {
            let listeners = listeners.into_iter();
            listeners
                .map(|l| (l.name.clone(), show(&l.bind), show(&l.advertised)))
                .collect()
        })
        .map_err(|error| error.to_string())
}

#[test]
fn listeners_are_read_as_kafka_does() {
    const MAP: (&str, &str) = (
        "listener.security.protocol.map",
        "IN:PLAINTEXT,OUT:PLAINTEXT",
    );
    type Pairs = &'static [(&'static str, &'static str)];
    type Told = &'static [(&'static str, &'static str, &'static str)];
    let cases: &[(Pairs, Told)] = &[
        (
            &[("listeners", "PLAINTEXT://:9092")],
            &[("PLAINTEXT", ":9092", "host.example:9092")],
        ),
        (
            &[("listeners", "plaintext://[::1]:0")],
            &[("PLAINTEXT", "::1:0", "::1:0")],
        ),
        (
            &[
                ("listeners", "PLAINTEXT://0.0.0.0:9092"),
                ("advertised.listeners", "PLAINTEXT://kafka:19092"),
            ],
            &[("PLAINTEXT", "0.0.0.0:9092", "kafka:19092")],
        ),
        (
            &[
                ("listeners", "IN://:1, OUT://:2"),
                ("advertised.listeners", "OUT://example.org:3"),
                MAP,
            ],
            &[
                ("IN", ":1", "host.example:1"),
                ("OUT", ":2", "example.org:3"),
            ],
        ),
        (
            &[
                ("listeners", "PLAINTEXT://:9092,CONTROLLER://:9093"),
                (
                    "advertised.listeners",
                    "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
                ),
                ("controller.listener.names", "CONTROLLER"),
            ],
            &[("PLAINTEXT", ":9092", "localhost:9092")],
        ),
    ];
    for (pairs, expected) in cases {
        let expected: Vec<_> = expected
            .iter()
            .map(|(a, b, c)| ((*a).to_owned(), (*b).to_owned(), (*c).to_owned()))
            .collect();
        assert_eq!(listeners_of(pairs), Ok(expected), "{pairs:?}");
    }
}

#[test]
fn listeners_that_kafka_refuses_are_refused() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("listeners", "9092")], "NAME://HOST:PORT"),
        (&[("listeners", "PLAINTEXT://h:70000")], "NAME://HOST:PORT"),
        (&[("listeners", "PLAINTEXT://::1:9092")], "NAME://HOST:PORT"),
        (&[("listeners", "")], "at least one"),
        (
            &[("listeners", "PLAINTEXT://:1,PLAINTEXT://:2")],
            "PLAINTEXT comes twice",
        ),
        (
            &[("listeners", "SSL://:1")],
            "SSL is SSL, which is not served",
        ),
        (
            &[("listeners", "OUT://:1")],
            "listener.security.protocol.map=OUT:PLAINTEXT",
        ),
        (
            &[("listeners", "PLAINTEXT://0.0.0.0:9")],
            "advertised.listeners=PLAINTEXT://HOST:9",
        ),
        (&[("listeners", "PLAINTEXT://[::]:9")], "would tell them ::"),
        (
            &[("advertised.listeners", "PLAINTEXT://0.0.0.0:9")],
            "advertised.listeners = \"PLAINTEXT://0.0.0.0:9\"",
        ),
        (
            &[("advertised.listeners", "OTHER://h:9")],
            "which have no OTHER",
        ),
        (
            &[("listener.security.protocol.map", "PLAINTEXT")],
            "NAME:PROTOCOL",
        ),
        (
            &[
                ("listeners", "A://:9,B://:9"),
                ("listener.security.protocol.map", "A:PLAINTEXT,B:PLAINTEXT"),
            ],
            "each port once; 9 comes twice",
        ),
    ];
    for (pairs, expected) in cases {
        let error = listeners_of(pairs).unwrap_err();
        assert!(error.contains(expected), "{pairs:?}: {error}");
    }
}

#[test]
fn every_wrong_listener_is_named() {
    let wrong = |pairs: &[(&str, &str)]| {
        let (_, wrong) = listeners::judged(&settings(pairs), || None);
        let wrong = wrong.iter().map(ToString::to_string);
        wrong.collect::<Vec<_>>()
    };
    let named = wrong(&[
        (
            "listeners",
            "SSL://:1,OUT://:2,PLAINTEXT://0.0.0.0:3,HERE://h:2",
        ),
        (
            "listener.security.protocol.map",
            "SSL:SSL,PLAINTEXT:PLAINTEXT,HERE:PLAINTEXT",
        ),
        ("advertised.listeners", "X://h:1,Y://h:2"),
    ]);
    let expected = [
        "2 comes twice",
        "which have no X",
        "which have no Y",
        "SSL is SSL",
        "OUT:PLAINTEXT",
        "PLAINTEXT would tell them 0.0.0.0",
    ];
    assert_eq!(named.len(), expected.len(), "{named:?}");
    for (error, expected) in named.iter().zip(expected) {
        assert!(error.contains(expected), "{error}");
    }
    let forms = wrong(&[
        ("listeners", "9092"),
        ("advertised.listeners", "h:9092"),
        ("listener.security.protocol.map", "PLAINTEXT"),
    ]);
    assert_eq!(forms.len(), 3, "{forms:?}");
    assert_eq!(wrong(&[("listeners", "PLAINTEXT://h:1")]), [""; 0]);
}

#[test]
fn the_configuration_page_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let page = docs::page();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = std::fs::File::create(&path).unwrap();
        io::Write::write_all(&mut file, page.as_bytes()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(
        written == page,
        "{} is not current: UPDATE_GOLDEN=1 writes it",
        path.display()
    );
}

#[test]
fn two_names_of_a_key_must_agree_where_they_stand_beside_each_other() {
    let error = config(&[("node.id", "1"), ("broker.id", "0")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "broker.id = \"0\" (library): allowed is \"1\", as node.id says (library)"
    );
    assert!(config(&[("log.dir", "/a"), ("log.dirs", "/b")]).is_err());
    let agreed = config(&[("node.id", "1"), ("broker.id", "1")]).unwrap();
    assert_eq!(agreed.broker_id, BrokerId(1));
    // A later layer wins, by whatever name.
    let mut settings = settings(&[("node.id", "1")]);
    settings.set("broker.id", "2", Origin::Flag("--broker-id"));
    assert_eq!(Config::new(&settings).unwrap().broker_id, BrokerId(2));
}

#[test]
fn a_volume_has_fifty_slots() {
    let key = "transaction.state.log.num.partitions";
    assert!(config(&[(key, "50")]).unwrap().warnings.is_empty());
    let error = config(&[(key, "10")]).unwrap_err().to_string();
    assert_eq!(error, format!("{key} = \"10\" (library): allowed is 50"));
}

#[test]
fn connections_may_be_idle_for_ever() {
    let config = config(&[("connections.max.idle.ms", "-1")]).unwrap();
    assert_eq!(config.limits.idle, Duration::MAX);
}
