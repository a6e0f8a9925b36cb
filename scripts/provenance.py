"""Write how files were built: an in-toto statement with SLSA provenance 1.0, in JSON.

    provenance.py out/provenance.json --lock requirements.lock out/sbom.json
    provenance.py OUT --kind image --parameter role=node --lock LOCK --lock LIST FILE...

The statement names the files by their SHA-256, the commit they were built from and
whether the working tree differed from it, and the locks of all libraries and packages.
It has no time of its own: two builds of one commit have the same statement. Signed, it
is level 1 of SLSA's build track; level 2 needs a hosted build service.

Source: https://slsa.dev/spec/v1.0/provenance, https://in-toto.io/Statement/v1.
"""

import argparse
import hashlib
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:yamamori:build:{}:1"
BUILDER = "urn:yamamori:builder:make:1"


def state(
    files: list[Path], locks: list[Path], kind: str, parameters: dict[str, str]
) -> dict[str, Any]:
    """Return the statement.

    Raises:
        OSError: A file cannot be read.
        SystemExit: This is no Git checkout.
    """
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no").splitlines()
    source = {"uri": "git+yamamori", "digest": {"gitCommit": commit}}
    return {
        "_type": STATEMENT,
        "subject": [_described(path) for path in sorted(files)],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE.format(kind),
                "externalParameters": parameters,
                "internalParameters": {
                    "modified": sorted(line.split()[-1] for line in changed)
                },
                "resolvedDependencies": [source, *map(_described, locks)],
            },
            "runDetails": {
                "builder": {
                    "id": BUILDER,
                    "version": {"python": platform.python_version()},
                }
            },
        },
    }


def _described(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "digest": {"sha256": digest}}


def _git(*words: str) -> str:
    command = ["git", "-C", ROOT, *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - fixed words
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"provenance: the sources must be a Git checkout: {error.stderr.strip()}"
        ) from error
    return done.stdout.strip()


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("files", type=Path, nargs="+", help="what was built")
    parser.add_argument("--lock", type=Path, action="append", default=[])
    parser.add_argument("--kind", default="source", help="such as image")
    parser.add_argument(
        "--parameter", action="append", default=[], metavar="NAME=VALUE"
    )
    given = parser.parse_args()
    parameters = dict(each.split("=", 1) for each in given.parameter)
    statement = state(given.files, given.lock, given.kind, parameters)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(statement, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
