# The two commands of the README; the work is done by the scripts in tests/tools.

.PHONY: help demo test test-arm64 bench bench-cache power-cut endurance

help:
	@echo 'make demo   talk to a small model through boxmaker: fetches a llama-server and the model first'
	@echo 'make test   run every check and test'
	@echo 'make power-cut N=1000  cut the power N times in the middle of turns, and check ten times as many disk states'
	@echo 'make endurance  the long runs: a million histories, kills, bad input, load and a walk with a model, for about an hour'
	@echo 'make bench  measure speed, memory and size, each beside its reference, and write docs/performance.md'
	@echo 'make bench-cache  count the tokens that a conversation makes the model evaluate, against the least possible'

demo:
	@tests/tools/demo

test:
	@tests/tools/run-tests

bench:
	@cargo build --quiet --release -p boxmaker -p boxmaker-bench --bins
	@tests/bench/on-journaled-ext4 target/release/bench

# tokens are counted, not seconds: a quick build will do
bench-cache:
	@eval "$$(tests/tools/get-model-server | sed 's/^/export /')" && \
		eval "$$(tests/tools/get-test-parts | sed 's/^/export /')" && \
		cargo bench --quiet --profile dev --bench cache

N = 1000
power-cut:
	@BOXMAKER_POWER_CUTS=$(N) cargo test --test power_cut -- --nocapture --test-threads 1

endurance:
	@cargo run --quiet --release -p boxmaker-histories -- 1000000
	@BOXMAKER_KILLS=1000 cargo test --test faults -- --nocapture --test-threads 1 kill
	@BOXMAKER_FUZZ_SECONDS=120 cargo test --test fuzz -- --nocapture --test-threads 1
	@BOXMAKER_LOAD_SECONDS=600 BOXMAKER_LOAD_SESSIONS=1000 BOXMAKER_LOAD_TURNS=50 \
		cargo test --test load -- --nocapture --test-threads 1
	@eval "$$(tests/tools/get-model-server | sed 's/^/export /')" && \
		BOXMAKER_WALK=500 cargo test --test cache_walk -- --nocapture

# opt-in: it needs root, and some minutes and 1.5 GB the first time
test-arm64:
	@tests/systemd/arm64
