FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --locked --release -p gateway

FROM debian:bookworm-slim
RUN useradd --system --home-dir /var/lib/fencepost --create-home fencepost
COPY --from=build /src/target/release/fencepost /usr/local/bin/fencepost
USER fencepost
VOLUME /var/lib/fencepost
EXPOSE 9092
ENTRYPOINT ["fencepost"]
CMD ["serve", "--data-dir", "/var/lib/fencepost", "--override", "listeners=PLAINTEXT://0.0.0.0:9092", "--override", "advertised.listeners=PLAINTEXT://localhost:9092"]
