# Two commands do everything: `make demo` and `make test`.
RAIN ?=
STATION ?=
FROM ?=
TO ?=
DEMO_FOREVER ?=
ROLE ?= node
DEBIAN ?= 12 13
ACCOUNT ?= root sudo
COMMANDS ?= demo test
OSV ?= out/osv
# Tests wait more than they compute: two processors need as many processes.
TEST_JOBS ?= 7
LONG_TEST_JOBS ?= 5
# Some environments forbid byte code; each program that a test starts would then compile
# its modules anew, which takes as long as half of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup stores fresh demo test test-long soak chaos attack fuzz dist deb deb-test containers containers-test sbom audit docs check clean lock image image-test

help: ## Show the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: ## Install what is missing: Debian packages and .venv
	@scripts/setup

demo: ## Run a storm through the whole system (RAIN=FILE STATION=KPAE FROM=.. TO=.. for recorded rain)
	@scripts/setup demo
	@.venv/bin/python -m demo $(if $(RAIN),--rain "$(RAIN)") $(if $(STATION),--station "$(STATION)") \
	  $(if $(FROM),--from "$(FROM)") $(if $(TO),--to "$(TO)") $(if $(DEMO_FOREVER),--forever)

stores: setup ## Install the servers that tests need besides .venv (Azurite, an OpenID provider)
	@cd tests/stores && { cmp -s package-lock.json node_modules/.installed || \
	  { PATH="$(CURDIR)/.venv/bin:$$PATH" npm ci --silent --ignore-scripts && cp package-lock.json node_modules/.installed; }; }

test: setup stores ## Run every test in its short form (TEST_JOBS=n processes)
	@scripts/test $(TEST_JOBS) "not long"

fresh: ## Run demo and test on bare Debian systems, as root (DEBIAN="12 13" ACCOUNT="root sudo" COMMANDS="demo test")
	@DEBIAN="$(DEBIAN)" ACCOUNT="$(ACCOUNT)" COMMANDS="$(COMMANDS)" scripts/fresh

test-long: setup stores ## Run what repeats a promise at a larger size or over a longer time
	@scripts/install-programs long
	@scripts/test $(LONG_TEST_JOBS) long

soak: setup stores ## Run the long crash tests (SOAK_ROUNDS=200 SOAK_SEED=.. to change and repeat)
	@scripts/soak

chaos: setup ## Break everything by a seeded plan (CHAOS_SECONDS=600 for longer, CHAOS_SEED=.. to repeat)
	@CHAOS_SECONDS=$${CHAOS_SECONDS:-600} .venv/bin/python -m pytest tests/chaos -q -s

attack: setup stores ## Make every attack of docs/explanation/trust.md, and print what it does to others
	@# Only their files: with those of psycopg and others in one process, its libldap ends that at exit.
	@.venv/bin/python -m pytest -p attack_table -m attack -q $$(grep -rl --include="test_*.py" mark.attack tests)

fuzz: setup ## Feed each reader a million hostile messages (FUZZ_CASES=.. for more or fewer)
	@FUZZ_CASES=$${FUZZ_CASES:-1000000} .venv/bin/python -m pytest tests/fuzz -q -n auto --durations=5

dist: setup ## Build wheel and sdist, with bill of materials and provenance, in out/dist/
	@scripts/dist

deb: setup ## Build Debian packages in out/deb/ (ROLE="gateway backend console"; DEB_ARCH=arm64 for a Pi)
	@scripts/deb $(ROLE)

deb-test: setup ## Build two versions of the packages, and install, upgrade and remove them in a container
	@rm -rf out/deb-test
	@scripts/deb-test

containers: setup ## Build images of broker, gateway and backend (BASE=.. for another Debian, ENGINE=docker)
	@scripts/containers

containers-test: setup ## Build images and run the compose file with podman, as root
	@CONTAINERS_TEST=1 .venv/bin/python -m pytest tests/packages/test_running_containers.py -v

sbom: setup ## Write what the product is made of (CycloneDX), and from which commit (SLSA provenance), to out/
	@.venv/bin/python scripts/sbom.py requirements.lock out/sbom.json --built "$$(git log -1 --format=%ct)"
	@.venv/bin/python scripts/provenance.py out/provenance.json out/sbom.json --lock requirements.lock

audit: setup ## Compare the lock with advisories of OSV (OSV=folder or all.zip, from osv.dev)
	@.venv/bin/python scripts/audit.py requirements.lock "$(OSV)"

check: setup ## Run the formatter, linters, types and import contracts
	@scripts/check

docs: setup ## Write the documentation as web pages and man pages to out/
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet
	@.venv/bin/python scripts/man_pages.py out/man

lock: setup ## Write requirements.lock anew from pyproject.toml
	@scripts/lock

image: setup ## Build a flashable Raspberry Pi image (ROLE=node|gateway IMAGE_KEY=.. to sign), as root
	@image/build $(ROLE)

image-test: setup ## Boot the image in QEMU: power cuts, clock, watchdog, updates (ROLE=gateway for the other)
	@image/test $(ROLE)

clean: ## Remove what the commands made, but not .venv
	@rm -rf out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
