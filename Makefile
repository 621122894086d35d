# The two commands of the README; the work is done by the scripts in tests/tools.

.PHONY: help demo test test-arm64 bench

help:
	@echo 'make demo   talk to a small model through boxmaker: fetches a llama-server and the model first'
	@echo 'make test   run every check and test'
	@echo 'make bench  measure a durable append against the plain system calls'

demo:
	@tests/tools/demo

test:
	@tests/tools/run-tests

bench:
	@cargo bench --quiet --bench append

# opt-in: it needs root, and some minutes and 1.5 GB the first time
test-arm64:
	@tests/systemd/arm64
