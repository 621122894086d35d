# The two commands of the README; the work is done by the scripts in tests/tools.

.PHONY: help demo test

help:
	@echo 'make demo   talk to a small model through boxmaker: fetches a llama-server and the model first'
	@echo 'make test   run every check and test'

demo:
	@tests/tools/demo

test:
	@tests/tools/run-tests
