# `make demo` shows the main job, `make check` is the one test command; both set up .venv on first use. The
# demo needs torch alone and is ready sooner; all other commands install the extra `dev`.
# `make check BIN=/some/venv/bin` uses another environment as it is, and installs nothing there.
PYTHON ?= python3
OWN := .venv/bin
BIN ?= $(OWN)
DEMO := $(if $(filter $(OWN),$(BIN)),$(OWN)/synth)
READY := $(if $(filter $(OWN),$(BIN)),$(OWN)/ruff)

.PHONY: check test lint demo golden mutants judges bench bench-network bench-models bench-balance bench-limits bench-gpu bench-all accuracy published networks fuzz wheel light audit \
	docs notebooks pictures proof proof-quick versions

check: lint test

test: $(READY)
	CI=1 $(BIN)/python -m pytest -q -n auto --dist loadfile

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

demo: $(DEMO)
	PATH="$(abspath $(BIN)):$$PATH" sh examples/demo.sh

golden: $(READY)
	$(BIN)/python -m pytest -q tests/codegen/test_golden.py --update-golden

mutants: $(READY)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt mutmut
	CI=1 OMP_NUM_THREADS=1 $(BIN)/python -m mutmut run && $(BIN)/python -m mutmut results

# torch's databases of modules and operators on ranks, beside one process; hours on two cores, and goes on where
# it was stopped
judges: $(READY)
	$(BIN)/python -m benchmarks.judges --dtypes float64 bfloat16 --results judges.jsonl -o docs/judges.md

bench: $(READY)
	$(BIN)/python -m benchmarks.suite

# ranks on four hosts of this machine, joined by links of 1 Gbit/s; needs root and iproute2
bench-network: $(READY)
	$(BIN)/python -m benchmarks.suite --hosts 4 --link 1gbit --objective time
	$(BIN)/python -m benchmarks.suite.overlap --hosts 2 --procs 2

# training steps of whole networks, on one host and on a network
bench-models: $(READY)
	$(BIN)/python -m benchmarks.suite.models --procs 2 4
	$(BIN)/python -m benchmarks.suite.models --procs 4 --hosts 4

# networks and layers at the balance of GPU clusters: links that carry as many words per operation of a rank
# as those inside an H100 node (240 Mbit/s here) and between A100 nodes (60 Mbit/s); see docs/speed.md. About 70
# minutes, of which WRN-50-4 takes 20; every line is written at once, so parts can be measured alone
bench-balance: $(READY)
	$(BIN)/python -m benchmarks.balance
	for link in 60mbit 240mbit; do \
	$(BIN)/python -m benchmarks.suite.models --hosts 4 --link $$link --seconds 20 --rounds 2 20 || exit 1; done
	for link in 60mbit 240mbit; do \
	$(BIN)/python -m benchmarks.suite --procs 4 --hosts 4 --link $$link --objective time --once --seconds 8 \
	--rounds 1 25 --profiles 1 || exit 1; done

# beside one process that has all cores, the limit on one host (15 minutes)
bench-limits: $(READY)
	$(BIN)/python -m benchmarks.suite.models --procs 2 --peers "one process" "one process, compiled" \
		-o benchmarks/results/limits.md

# one process on one GPU beside plain torch and DDP: networks, layers, memory, rates
bench-gpu: $(READY)
	$(BIN)/python -m benchmarks.gpu

bench-all: bench
	$(BIN)/python -m benchmarks.suite.overlap
	$(BIN)/python benchmarks/planning.py -o benchmarks/results/planning.md

# hostile input for 15 minutes, then random networks on ranks for 15, from another seed each day
fuzz: $(READY)
	PYTHONPATH=. $(BIN)/python tests/support/fuzz.py --seconds 900 --seed $$(date +%Y%m%d)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.network_fuzz --seconds 900 --start $$(date +%Y%m%d0000) --shrink

# the tests of ranks and of programs with the oldest versions that pyproject.toml declares, and with the newest;
# brings gigabytes of CUDA, takes half an hour
TESTED = tests/runtime tests/codegen tests/parallel
TOOLS = expecttest hypothesis jsonschema pytest pytest-timeout pytest-xdist ruff
versions:
	$(PYTHON) -m venv build/oldest
	build/oldest/bin/python -m pip install -q -c constraints-oldest.txt -e '.[all,hdf5,models,zarr]' $(TOOLS)
	CI=1 build/oldest/bin/python -m pytest -q -n auto --dist loadfile -W default $(TESTED)
	$(PYTHON) -m venv build/newest
	build/newest/bin/python -m pip install -q -e '.[all,hdf5,models,zarr]' $(TOOLS)
	CI=1 build/newest/bin/python -m pytest -q -n auto --dist loadfile -W default $(TESTED)

# the same commit gives the same bytes, wherever and whenever it is built
wheel: $(READY)
	umask 022 && rm -rf build/tree && mkdir -p build/tree && git archive HEAD | tar x -C build/tree && \
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist build/tree

# the wheel in an empty environment without extras: its size, and what it can do; needs a package index
light: wheel
	PYTHON=$(PYTHON) .ci/light

# known vulnerabilities of the pins; needs a package index and its vulnerability service
audit:
	$(PYTHON) -m venv build/audit && build/audit/bin/python -m pip install -q --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt || { \
	echo "audit: a pin is vulnerable or could not be looked up, as said above; without the service nothing is known" >&2; exit 1; }

# the site, in build/site; needs no network once the environment is there
docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -q -c docs/site -b html . build/site
	@echo "open build/site/docs/index.html"

# the machine-checked lower bound (docs/proof.md); needs coq and mathcomp. The proofs take a minute. No theorem may
# rest on an axiom. `make proof` reads the compiled files again with the independent checker of coq
proof-quick:
	@command -v coqc >/dev/null || { echo "coq is missing: apt-get install coq libcoq-mathcomp-algebra libcoq-mathcomp-zify" >&2; exit 1; }
	mkdir -p build/proof && cp -pu proof/_CoqProject proof/*.v build/proof && cd build/proof && \
	coq_makefile -f _CoqProject -o Makefile.coq && $(MAKE) -j 2 -f Makefile.coq && \
	coqc -R . Synth Assumptions.v >assumptions && \
	! grep -v '^Closed under the global context$$' assumptions && \
	[ "$$(grep -c . assumptions)" = "$$(grep -c '^Print' Assumptions.v)" ] && echo "no theorem rests on an axiom"

proof: proof-quick
	cd build/proof && coqchk -o -R . Synth $$(grep -o '^[A-Z][A-Za-z]*' _CoqProject | sed 's/^/Synth./') >checked 2>&1 && \
	grep -q '^\* Axioms: <none>$$' checked && echo "coqchk read the compiled proofs: no axioms"

# run the notebooks again and store what they show; draw the pictures of README.md and docs/ again
notebooks: $(READY)
	$(BIN)/python docs/site/run_notebooks.py

pictures: $(READY)
	$(BIN)/python docs/site/architecture.py && $(BIN)/python docs/site/gains.py
	mkdir -p build && $(BIN)/synth plan examples/conv.yaml --procs 64 --json -o build/plan.json
	$(BIN)/synth plot build/plan.json --picture grid -o docs/pictures/plan.svg
	for picture in strategies memory tradeoff; do \
	$(BIN)/synth plot build/plan.json --picture $$picture -o docs/pictures/$$picture.svg || exit 1; done
	$(BIN)/synth bounds examples/conv.yaml --procs 1:4096 --bounds-only --plot docs/pictures/bounds.svg

accuracy: $(READY)
	$(BIN)/python -m benchmarks.papers.accuracy

# times that others printed, beside predictions
published: $(READY)
	$(BIN)/python -m benchmarks.papers.printed_times

networks: $(READY)
	$(BIN)/python benchmarks/networks.py

# pip compiles on one core what it installs; compileall takes all
INSTALL = $(PYTHON) -m venv .venv && $(OWN)/python -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt
COMPILE = { $(OWN)/python -W ignore -m compileall -qq -j 0 .venv/lib || true; }

$(OWN)/synth: pyproject.toml constraints.txt
	$(INSTALL) -e '.[torch]' && $(COMPILE) && touch $@

$(OWN)/ruff: pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]' && $(COMPILE) && touch $(OWN)/synth $@
