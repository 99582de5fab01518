# Each target is a script that also works alone; ARGS go to it: make demo ARGS="--sessions 5".

.PHONY: help demo test bench lint doc deny setup

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 10

demo: ## see it work
	scripts/demo $(ARGS)

test: ## everything that has to pass
	scripts/test

bench: ## measure it on a real broker
	scripts/bench $(ARGS)

lint: ## format and lints
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

doc: ## the API's documentation
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --locked

deny: ## licences and sources of the dependencies; ARGS=--advisories for vulnerabilities
	scripts/deny $(ARGS)

setup: ## install what the build and the tests need
	scripts/setup
