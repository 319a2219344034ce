# The proxy in a small image, run by a user without rights.
#
#   docker build --tag lockgate .
#   docker run --network host --volume ./lockgate.yaml:/etc/lockgate/lockgate.yaml:ro lockgate
#   docker run --rm --network host --volume ./lockgate.yaml:/etc/lockgate/lockgate.yaml:ro lockgate init
#
# There is no configuration in the image: on its own network, a container must listen on all addresses
# (listen: 0.0.0.0:6380, admin: 0.0.0.0:9380), and Lockgate does so only before a data node that asks for a
# password.

FROM rust:1-bookworm AS builder
WORKDIR /build
COPY Cargo.toml Cargo.lock ./
# The dependencies alone, so that a change of ours does not build them again.
RUN mkdir src && echo 'fn main() {}' > src/main.rs && touch src/lib.rs \
    && cargo build --profile dist --locked --bin lockgate && rm -r src
COPY src src
# Cargo goes by time, and the files copied may be older than the placeholders.
RUN touch src/main.rs src/lib.rs && cargo build --profile dist --locked --bin lockgate

FROM debian:bookworm-slim
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Lockgate" \
      org.opencontainers.image.description="A Redis-protocol proxy that makes locks hold" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
RUN groupadd --system --gid 6380 lockgate \
    && useradd --system --no-create-home --uid 6380 --gid 6380 --shell /usr/sbin/nologin lockgate
COPY --from=builder /build/target/dist/lockgate /usr/local/bin/lockgate
# Whom to trust at rediss:// where no CA is configured.
COPY --from=builder /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# Read by the proxy, by init, check and doctor, and by the health check, so that it asks where the proxy
# listens. Another place is told by this variable, not by --config.
ENV LOCKGATE_CONFIG=/etc/lockgate/lockgate.yaml
# By number: Kubernetes knows so that it is not root (runAsNonRoot).
USER 6380:6380
# Clients; /metrics, /healthz and /readyz.
EXPOSE 6380 9380
# Whether the process answers, not whether Redis does: restarting the proxy
# would not bring Redis back. /readyz tells the rest.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 \
    CMD ["lockgate", "health"]
ENTRYPOINT ["lockgate"]
