"""Code rules that no linter checks."""

import ast
import re
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from pydoc import locate
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "service_runtime",
    "spatial_mqtt",
    "slope_science",
    "edge_agent",
    "gateway_daemon",
    "backend_spark",
)
SOURCES = sorted(
    path for package in PACKAGES for path in (ROOT / package).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
MAX_LINES = 600
MAX_BODY_LINES = 40
MIN_LINES = 60


def iter_functions(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield node


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_module_and_its_functions_stay_small(path: Path) -> None:
    """At most 600 lines per file and 40 lines per function body."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
    for function in iter_functions(path):
        start = function.body[0]
        if ast.get_docstring(function) and len(function.body) > 1:
            start = function.body[1]
        length = (function.end_lineno or 0) - start.lineno + 1
        assert length <= MAX_BODY_LINES, f"{function.name} has {length} lines"


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_every_test_states_the_rule_that_it_checks(path: Path) -> None:
    """In its docstring, or in a name of at least four words that needs none."""
    for function in iter_functions(path):
        if function.name.startswith("test_") and not ast.get_docstring(function):
            words = function.name.split("_")[1:]
            assert len(words) >= 4, f"{function.name} has no docstring"


def test_no_module_has_a_catch_all_name() -> None:
    """Names such as `utils`, `common` and `helpers` do not describe the content."""
    catch_all_names = {"utils", "util", "common", "helpers", "misc"}

    assert [
        p
        for p in SOURCES
        if p.stem in catch_all_names or p.parent.name in catch_all_names
    ] == []


def test_topics_are_written_in_one_module() -> None:
    """Only `topics` contains literals of the system's topics."""
    literal = re.compile(r"""["']/(forward|custody|api|notice)/""")
    offenders = [
        name_of(p)
        for p in SOURCES
        if p.name != "topics.py" and literal.search(p.read_text(encoding="utf-8"))
    ]

    assert offenders == []


def test_node_and_gateway_need_no_numpy_pandas_or_spark() -> None:
    """The extras of a node and a gateway stay small enough for a Raspberry Pi."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    light = [
        *project["dependencies"],
        *project["optional-dependencies"]["edge"],
        *project["optional-dependencies"]["gateway"],
    ]
    heavy = re.compile(r"^(numpy|pandas|pyspark|pyarrow|deltalake)", re.IGNORECASE)

    assert [name for name in light if heavy.match(name)] == []


def test_decisions_are_numbered_without_a_gap() -> None:
    """Decision pages are referred to by number."""
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))

    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))


def test_tests_have_no_init_file() -> None:
    """An `__init__.py` in tests/edge_agent/queue hides the standard library's queue."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def iter_methods(path: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Class and method, of the public classes of a file."""
    for kind in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(kind, ast.ClassDef) and not kind.name.startswith("_"):
            yield from (
                (f"{name_of(path)}: {kind.name}.{method.name}", method)
                for method in kind.body
                if isinstance(method, ast.FunctionDef)
            )


def test_public_methods_are_documented() -> None:
    """A public method has a docstring, or a method that it overrides has one."""
    found = [each for path in SOURCES for each in iter_methods(path)]
    documented = {method.name for _, method in found if ast.get_docstring(method)}

    assert [
        where
        for where, method in found
        if not method.name.startswith("_") and method.name not in documented
    ] == []


RAISES = re.compile(r"^( *)Raises:\n((?:\1 +.*\n|\n)+)", re.MULTILINE)
ERRORS = re.compile(r"^([\w.]+(?:, *[\w.]+)*):", re.MULTILINE)


def iter_raised_names(tree: ast.Module) -> Iterator[str]:
    """Names of exceptions in the sections `Raises:` of a module's docstrings."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    for node in ast.walk(tree):
        text = isinstance(node, documented) and ast.get_docstring(node)
        for section in RAISES.finditer(f"{text or ''}\n"):
            for names in ERRORS.findall(dedent(section[2])):
                yield from names.replace(" ", "").split(",")


def iter_bound_names(tree: ast.Module) -> Iterator[str]:
    """Names that a module imports or assigns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_exceptions_that_docstrings_name_exist() -> None:
    """As a class of the project, a builtin, with its module, or in this module."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
    classes = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    named = [(p, name) for p, tree in trees.items() for name in iter_raised_names(tree)]

    assert len(named) > 500
    assert [
        f"{name_of(path)}: {name}"
        for path, name in named
        if name not in classes
        and locate(name) is None  # also builtins
        and name not in iter_bound_names(trees[path])
    ] == []


def test_public_class_names_are_unique() -> None:
    """A class name means one thing in all packages."""
    where: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(name_of(path))

    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def iter_imported_modules(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, of modules and of names in them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_small_file_has_a_single_importer() -> None:
    """A file under 60 lines with one importer belongs in that importer."""
    importers: dict[str, set[str]] = {}
    for path in SOURCES:
        for module in iter_imported_modules(path):
            importers.setdefault(module, set()).add(name_of(path))
    small = [
        path
        for path in SOURCES
        if not path.name.startswith("__")
        and len(path.read_text(encoding="utf-8").splitlines()) < MIN_LINES
    ]

    assert [
        name_of(path)
        for path in small
        if len(importers.get(name_of(path)[:-3].replace("/", "."), ())) == 1
    ] == []


def test_console_modules_do_not_import_each_other_in_a_circle() -> None:
    """No module of the console's pages imports itself, directly or by another."""
    imported = re.compile(r"""(?:\bfrom|\bimport\(?)\s*"\./(\w+)\"""")
    imports = {
        path.stem: imported.findall(path.read_text(encoding="utf-8"))
        for path in (ROOT / "backend_spark/console/web/src").glob("*.ts")
    }

    assert set(TopologicalSorter(imports).static_order()) == set(imports)
