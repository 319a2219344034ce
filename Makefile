# Two commands are all it takes: make run, make test. Each installs what it needs.

CARGO ?= cargo

# The tests' own Node.js, where scripts/setup.sh has found the system's too old.
export PATH := $(CURDIR)/target/node/node_modules/.bin:$(PATH)

# Most tests wait for servers longer than they work.
THREADS ?= $(shell echo $$((4 * $$(nproc))))

# A package of its own, which is built with optimisation.
MODEL := --manifest-path tests/model/Cargo.toml --target-dir target/model --quiet

# Each for a share of the time; the one that runs real servers for three.
FUZZ := requests replies grammar bodies configuration node_replies differential differential differential

.PHONY: help run test long shared model races lint bench chaos fuzz compat suites dist dist-test fresh-test advisories docker docker-test chart-test docs picture languages coordinators lock-set

help:
	@echo "make run     a whole deployment on this machine: proxy, data node, five lock nodes"
	@echo "make test    formatting, lints, and all tests with real servers and clients but the longest"
	@echo "make model   the model of the algorithm, through every state within bounds, wide ones too (ONLY=--ignored)"
	@echo "make races   races between proxies, and random guarded commands, a hundred times as many as in make test (ROUNDS=n)"
	@echo "make long    the tests with servers that take longest, which make test leaves out"
	@echo "make shared  the tests with servers again, with clients that share connections to the data node"
	@echo "make bench   what commands and locks cost, beside other proxies and lock libraries"
	@echo "make coordinators  locks beside etcd and ZooKeeper, half an hour"
	@echo "make lock-set  what faults cost a set that is changed under SET NX, Redlock, etcd's lock and Lockgate (SEED=n)"
	@echo "make chaos   everything fails, for minutes: simulated (SEEDS=n), and with real processes"
	@echo "             in network namespaces, as root (MINUTES=n); SEED=n; planted faults are found"
	@echo "make fuzz    any bytes, guided by coverage, and scripts that are nearly a lock's; SEED=n;"
	@echo "             TIME=seconds in all (600); needs a nightly"
	@echo "make compat  a running proxy of another version is replaced, and replaces this one (BEFORE=rev)"
	@echo "make suites  lock libraries' own tests, on Redis and through a proxy that adopts their locks"
	@echo "make languages  libraries for Go, Ruby, Perl, PHP and Lua, and the pages' programs for them (ONLY=php)"
	@echo "make lint    formatting, lints and the links of the code's documentation"
	@echo "make dist    what can be downloaded: a static binary as tar.gz, .deb and .rpm, into target/packages"
	@echo "make dist-test  installs them in fresh roots of Debian, and locks there; as root"
	@echo "make fresh-test  make run and make test in a bare Debian 12 with Rust and make (ONLY=run); as root"
	@echo "make advisories  dependencies with known weaknesses; asks GitHub"
	@echo "make docker  the container image lockgate:latest; docker-test: config/compose.yaml with it"
	@echo "make chart-test  charts/lockgate, installed by Helm's code in a server that keeps what it is sent"
	@echo "make docs    all pages as a site: target/book/html/index.html"
	@echo "make picture the picture of the status page in docs/images, eleven minutes; as root"

# Without what a first build keeps for the next one, which takes a sixth of its time.
run:
	@scripts/setup.sh run
	CARGO_INCREMENTAL=0 $(CARGO) build --bin lockgate --quiet
	@exec target/debug/lockgate dev

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets --quiet -- -D warnings
	$(CARGO) clippy $(MODEL) --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --no-deps --quiet

test:
	@CARGO=$(CARGO) THREADS=$(THREADS) scripts/test.sh

model:
	RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/scripts/lint.sh CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__ \
		$(CARGO) test $(MODEL) -- $(or $(ONLY),--include-ignored)

bench:
	@scripts/setup.sh bench
	# Apart: the examples take what tests need, and its features with it, which the binary that is shipped lacks.
	$(CARGO) build --release --bins --quiet
	$(CARGO) build --release --examples --quiet
	@export PYTHONUNBUFFERED=1; failed=0; bench/run || failed=1; bench/share || failed=1; bench/locks || failed=1; bench/permits || failed=1; bench/guards || failed=1; bench/adopt || failed=1; bench/idle || failed=1; bench/follow || failed=1; bench/shards || failed=1; bench/wakeups || failed=1; bench/pages || failed=1; exit $$failed

coordinators:
	@scripts/setup.sh coordinators
	$(CARGO) build --release --bins --quiet
	PYTHONUNBUFFERED=1 bench/coordinators

lock-set:
	@scripts/setup.sh lock-set
	$(CARGO) build --release --bins --quiet
	PYTHONUNBUFFERED=1 bench/lock-set --seed $(or $(SEED),1)

# The tests with servers that take longest: masses of locks or bytes, clusters, browsers. `make test` has others of each kind.
long:
	@scripts/setup.sh test
	$(CARGO) test --quiet --test servers -- --ignored --skip the_picture --test-threads=4

# All proxies of the tests with `share: yes`. Left out is what differs by design (docs/sharing.md): tests about the end of
# idle clients with the data node's, about sockets, about MONITOR, about lines of the file and of `lockgate doctor`, and about
# clients that keep others waiting.
NOT_SHARED := it_runs_out_where_the_data_node where_the_data_node_is_away the_fronts_follow_failovers \
	the_process_tells_what_it_uses doctor_knows_that_nodes_were_left a_data_node_that_answers_nesting clients_that_never_read_hold \
	a_reader_that_leaves_100_mb monitor_lines_and_reset the_data_nodes_timeout_ends losing_the_data_node \
	a_configuration_with_a_fault_changes_nothing the_old_process_goes_on_whatever

shared:
	@scripts/setup.sh test
	LOCKGATE_TEST_SHARE=1 $(CARGO) test --quiet --test transparency --test guards_bypass --test chaos
	LOCKGATE_TEST_SHARE=1 $(CARGO) test --quiet --test servers -- --test-threads=$(THREADS) \
		$(addprefix --skip ,$(NOT_SHARED))

# Races between proxies and clients, and random commands under guards, many times as many as in `make test`.
races:
	@scripts/setup.sh test
	LOCKGATE_ROUNDS=$(or $(ROUNDS),100) $(CARGO) test --quiet --test servers -- --test-threads=1 \
		--include-ignored forgets_nobody crosses_an_unlock guards::random

chaos:
	@scripts/setup.sh chaos
	LOCKGATE_SEEDS=$(or $(SEEDS),5000) LOCKGATE_SEED=$(or $(SEED),0) \
		$(CARGO) test --release --quiet --lib simulation -- --nocapture
	$(CARGO) build --quiet --features planted --target-dir target/planted --bin lockgate
	LOCKGATE_MINUTES=$(or $(MINUTES),5) LOCKGATE_SEED=$(or $(SEED),0) \
	LOCKGATE_PLANTED=$(CURDIR)/target/planted/debug/lockgate \
		$(CARGO) test --release --quiet --test chaos -- --ignored --nocapture --test-threads=1

fuzz:
	@scripts/setup.sh fuzz
	@failed=0; share=$$(($(or $(TIME),600) / 10)); echo "== lock scripts"; \
	LOCKGATE_FUZZ_SECONDS=$$share LOCKGATE_SEED=$(or $(SEED),0) \
		$(CARGO) test --release --quiet --lib whatever_they_drift_into -- --nocapture || failed=1; \
	for target in $(FUZZ); do \
		mkdir -p fuzz/corpus/$$target; echo "== $$target"; \
		$(CARGO) +nightly fuzz run --sanitizer none $$target fuzz/corpus/$$target \
			tests/fuzzing/corpus/$$target -- -dict=fuzz/dictionary -timeout=20 \
			-print_final_stats=1 -max_total_time=$$share || failed=1; \
	done; exit $$failed

# The version before is built from its commit, beside this one.
compat:
	@scripts/setup.sh test
	rm -rf target/before/source && mkdir -p target/before/source
	git archive $(or $(BEFORE),066ee4c) | tar -x -C target/before/source
	$(CARGO) build --quiet --manifest-path target/before/source/Cargo.toml --target-dir target/before --bin lockgate
	$(CARGO) build --quiet --bin lockgate
	tests/clients/.venv/bin/python tests/compat/both_ways.py target/before/debug/lockgate target/debug/lockgate
	tests/clients/.venv/bin/python tests/compat/readers.py target/before/debug/lockgate target/debug/lockgate

# Network namespaces give each run a port 6379 of its own.
suites:
	@scripts/setup.sh test
	$(CARGO) build --quiet --bin lockgate
	python3 tests/clients/suites/run.py target/debug/lockgate

# What Debian packages of libraries for languages that make test does not run.
languages:
	@scripts/setup.sh languages
	$(CARGO) build --quiet --bin lockgate
	python3 tests/clients/languages/run.py target/debug/lockgate $(ONLY)

dist:
	@scripts/setup.sh dist
	cargo deny --log-level error check licenses bans sources
	scripts/dist.sh $(ARCH)

# Apart, as its database is on GitHub.
advisories:
	@scripts/setup.sh deny
	cargo deny check advisories

fresh-test:
	@scripts/setup.sh fresh
	tests/packages/fresh.sh $(ONLY)

dist-test:
	@scripts/setup.sh dist
	tests/packages/run.sh $(SUITES)

docker:
	docker build --tag lockgate:latest \
		--build-arg VERSION=$$(sed -n 's/^version = "\(.*\)"/\1/p;T;q' Cargo.toml) \
		--build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) .

docker-test: docker
	tests/packages/container.sh

chart-test:
	@scripts/setup.sh chart
	$(CARGO) build --quiet --bin lockgate
	target/chart/bin/python tests/packages/chart.py target/debug/lockgate

docs:
	@scripts/setup.sh docs
	@scripts/book.sh

picture:
	@scripts/setup.sh picture
	$(CARGO) test --quiet --test operations -- --ignored the_picture_of_the_page
	pngquant --force --ext .png --quality 90-100 --speed 1 --strip docs/images/status-page.png
	test $$(stat -c %s docs/images/status-page.png) -lt 300000
