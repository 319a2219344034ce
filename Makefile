# Two commands are all it takes: make run, make test. Each installs what it needs.

CARGO ?= cargo

.PHONY: help run test lint bench chaos docker

help:
	@echo "make run     a whole deployment on this machine: proxy, data node, five lock nodes"
	@echo "make test    formatting, lints, and every test against real servers and clients"
	@echo "make bench   what commands and locks cost, beside other proxies and lock libraries"
	@echo "make chaos   everything fails, for minutes: simulated (SEEDS=n), and with real processes"
	@echo "             in network namespaces, as root (MINUTES=n); SEED=n; planted faults are found"
	@echo "make lint    formatting and lints alone"
	@echo "make docker  the container image lockgate:latest"

run:
	@scripts/setup.sh run
	$(CARGO) build --release --quiet
	@exec target/release/lockgate dev

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets --quiet -- -D warnings

test:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory lint
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --no-deps --quiet
	$(CARGO) test --quiet --no-fail-fast

bench:
	@scripts/setup.sh bench
	$(CARGO) build --release --bins --examples --quiet
	@failed=0; bench/run || failed=1; bench/locks || failed=1; exit $$failed

chaos:
	@scripts/setup.sh chaos
	LOCKGATE_SEEDS=$(or $(SEEDS),5000) LOCKGATE_SEED=$(or $(SEED),0) \
		$(CARGO) test --release --quiet --lib simulation -- --nocapture
	$(CARGO) build --quiet --features planted --target-dir target/planted --bin lockgate
	LOCKGATE_MINUTES=$(or $(MINUTES),5) LOCKGATE_SEED=$(or $(SEED),0) \
	LOCKGATE_PLANTED=$(CURDIR)/target/planted/debug/lockgate \
		$(CARGO) test --release --quiet --test chaos -- --ignored --nocapture --test-threads=1

docker:
	docker build --tag lockgate:latest .
