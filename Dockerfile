# The proxy in a small image, run by a user without rights.
#
#   docker build --tag lockgate .
#   docker run --network host --volume ./lockgate.yaml:/etc/lockgate.yaml:ro lockgate --config /etc/lockgate.yaml

FROM rust:1-bookworm AS builder
WORKDIR /build
COPY Cargo.toml Cargo.lock ./
# The dependencies alone, so that a change of ours does not build them again.
RUN mkdir src && echo 'fn main() {}' > src/main.rs && touch src/lib.rs \
    && cargo build --release --locked --bin lockgate && rm -r src
COPY src src
# Cargo goes by time, and the files copied may be older than the placeholders.
RUN touch src/main.rs src/lib.rs && cargo build --release --locked --bin lockgate \
    && strip target/release/lockgate

FROM debian:bookworm-slim
RUN useradd --system --no-create-home --uid 6380 --shell /usr/sbin/nologin lockgate
COPY --from=builder /build/target/release/lockgate /usr/local/bin/lockgate
# Whom to trust at rediss:// where no CA is configured.
COPY --from=builder /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
USER lockgate
# Clients; /metrics, /healthz and /readyz.
EXPOSE 6380 9380
# Whether the process answers, not whether Redis does: restarting the proxy
# would not bring Redis back. /readyz tells the rest.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 \
    CMD ["lockgate", "health"]
ENTRYPOINT ["lockgate"]
