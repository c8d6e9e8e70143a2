FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --locked --release -p gateway

FROM debian:bookworm-slim AS runtime
RUN useradd --system --home-dir /var/lib/fencepost --create-home fencepost
COPY --from=build /src/target/release/fencepost /usr/local/bin/fencepost
VOLUME /var/lib/fencepost
WORKDIR /var/lib/fencepost
EXPOSE 9092
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s CMD ["fencepost", "health", "--ready", "--timeout", "4000"]

# With the start scripts of Apache Kafka's and Confluent's images where Testcontainers' modules look
# for them: `docker build --target testcontainers`.
FROM runtime AS testcontainers
COPY docker/etc /etc
COPY docker/bin /usr/local/bin
# Start scripts of those modules edit what lies there.
RUN touch /etc/kafka/kafka.properties && chown -R fencepost /etc/kafka /etc/confluent
USER fencepost
CMD ["/etc/kafka/docker/run"]

FROM runtime
USER fencepost
ENTRYPOINT ["fencepost"]
CMD ["serve", "--data-dir", "/var/lib/fencepost", "--override", "listeners=PLAINTEXT://0.0.0.0:9092", "--override", "advertised.listeners=PLAINTEXT://localhost:9092"]
