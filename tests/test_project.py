"""House rules that a machine can check."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import pylash
from pylash.testing import conformance
from pylash.testing.laws import controllers as controller_laws
from pylash.testing.laws.suites import Suite
from tests import mission

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "pylash"
MODULES = sorted(SRC.rglob("*.py"))
LAW_MODULES = [
    importlib.import_module(".".join(path.relative_to(SRC.parent).with_suffix("").parts))
    for path in sorted((SRC / "testing" / "laws").rglob("*.py"))
    if path.stem not in ("__init__", "subjects", "suites")
]
MISSION_ROWS = [
    *(f"E{n}" for n in range(1, 14)),
    *(f"D{n}" for n in range(1, 8)),
    *(f"P{n}" for n in range(1, 17)),
    *(f"T{n}" for n in range(1, 11)),
    "G1",
    *(f"L{n}" for n in range(1, 6)),
    "X1",
    "X2",
]

COUNTERPART = r"`(?:law \w+|tests/[\w/]+\.py::\w+)`"
"""A test or a law, as docs/mission.md names it."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# --- the surface ---


@pytest.mark.parametrize("package", ["", ".lang", ".testing"])
def test_what_a_package_exports_is_there(package: str) -> None:
    module = importlib.import_module(f"pylash{package}")
    assert isinstance(module.__all__, tuple)
    for exported in module.__all__:
        assert getattr(module, exported) is not None


def test_the_names_for_type_checkers_are_the_names_there_are() -> None:
    tree = ast.parse((SRC / "__init__.pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    shown = {(node.module, alias.name) for node in imports for alias in node.names}
    assert {name for _, name in shown} == set(pylash.__all__)
    for module, name in shown:
        assert getattr(importlib.import_module(module or ""), name) is getattr(pylash, name)


def test_an_unknown_name_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        pylash.nonsense  # type: ignore[attr-defined]  # noqa: B018
    assert "open_host" in dir(pylash)


@pytest.mark.slow
def test_importing_the_package_loads_nothing_that_is_not_needed() -> None:
    code = "import sys, pylash; from pylash import open_host, InlineHost; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"pydantic", "asyncpg", "sqlite3", "click", "rich", "dataclasses_json", "pytest"}
    assert not heavy & set(loaded)


@pytest.mark.parametrize("package", ["", ".lang", ".testing"])
def test_public_names_have_docstrings(package: str) -> None:
    module = importlib.import_module(f"pylash{package}")
    for exported in module.__all__:
        value = getattr(module, exported)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, exported


def test_every_module_can_be_imported() -> None:
    for found in pkgutil.walk_packages([str(SRC)], "pylash."):
        importlib.import_module(found.name)


def test_the_version_is_written_once_in_two_places() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == pylash.__version__


# --- the code ---


def test_every_module_begins_with_a_docstring() -> None:
    assert [name(path) for path in MODULES if not re.match(r'"""[^\s"]', path.read_text())] == []


MAX_MODULES = 15
MAX_ATTRIBUTES = 15
MAX_METHODS = 25
MIN_COMMENTS = 0.05

FACADES = {"Lash", "Session", "ProcessContext"}
"""What users call: each method is one public operation, passed on to the part that performs it."""

GRAMMARS = (SRC / "lang", SRC / "testing" / "lashlang")
"""Where classes have a method for each kind of node, or a field for each key of a stored case."""

CONCURRENT = [
    *(SRC / "engine").rglob("*.py"),
    *(SRC / "durable" / "machines").glob("*.py"),
    *(SRC / "sessions" / f"{stem}.py" for stem in ("driver", "feeds", "listening", "writer")),
]
"""The modules that decide about concurrency."""

DECIDES_NOTHING = {
    "src/pylash/durable/machines/run_decisions.py",  # data; what each decision does is its docstring
    "src/pylash/durable/machines/run_table.py",  # a table; its cells are drawn in docs/internals
    "src/pylash/engine/executors.py",  # which executor takes which command
    "src/pylash/engine/runner_parts.py",  # what an app gives to its runner
    "src/pylash/engine/runs/endings.py",  # a port
    "src/pylash/engine/runs/outside.py",  # a port, and its plain form
    "src/pylash/engine/runs/programs.py",  # ports
    "src/pylash/engine/worker/config.py",  # options, and whether they are valid
}
SHORT = 40
"""Up to so many lines, the docstring of a module says what a reader must know."""


def modules_by_folder() -> dict[Path, int]:
    return Counter(path.parent for path in MODULES if path.stem != "__init__")


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the names that a class declares, or that its methods assign to self."""
    stored = {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
        if isinstance(one.value, ast.Name) and one.value.id == "self"
    }
    declared = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
    return stored | {one.id for one in declared if isinstance(one, ast.Name)}


def methods(node: ast.ClassDef) -> set[str]:
    """Return the names of the methods of a class: overloads of one method are one."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {one.name for one in node.body if isinstance(one, functions)}


def test_a_folder_has_few_modules() -> None:
    crowded = {name(at): count for at, count in modules_by_folder().items() if count > MAX_MODULES}
    assert crowded == {}


def test_a_class_has_few_attributes_and_methods() -> None:
    large = {}
    for path in (one for one in MODULES if not any(map(one.is_relative_to, GRAMMARS))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name not in FACADES:
                size = len(attributes(node)), len(methods(node))
                if size[0] > MAX_ATTRIBUTES or size[1] > MAX_METHODS:
                    large[f"{name(path)} {node.name}"] = size
    assert large == {}


def test_modules_that_decide_about_concurrency_state_their_invariants() -> None:
    assert {name(path) for path in CONCURRENT} >= DECIDES_NOTHING
    for path in CONCURRENT:
        lines = path.read_text().splitlines()
        if len(lines) > SHORT and name(path) not in DECIDES_NOTHING:
            comments = sum(line.lstrip().startswith("#") for line in lines)
            assert comments >= MIN_COMMENTS * len(lines), f"{name(path)}: {comments}/{len(lines)}"


# --- the tests ---

SETTERS = {"setattr", "getattr", "delattr", "hasattr"}
PRIVATE = re.compile(r"(?<!\w)_[A-Za-z]")
"""Without this, no name in a text is private. Parsing the others takes most of the time."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_names(tree: ast.AST) -> set[str]:
    """Return the private names that a module gives to its own classes, attributes and functions."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def private_reaches(path: Path) -> list[str]:
    """Return where a test reaches a private name that is not its own."""
    text = path.read_text()
    if not PRIVATE.search(text):
        return []
    tree = ast.parse(text)
    own, found = own_names(tree), list[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr="_exit"):
                reached = set[str]()
            case ast.Attribute(attr=attribute):
                reached = {attribute} - own
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("pylash"):
                reached = {alias.name for alias in names}
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if (
                called in SETTERS
            ):
                texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
                reached = {text.split(".")[-1] for text in texts if isinstance(text, str)}
            case _:
                continue
        found += [f"{name(path)}: {one}" for one in reached if is_private(one)]
    return found


def test_few_tests_reach_private_names() -> None:
    """Tests that know no private name stay true when the code behind the public ones changes."""
    paths = sorted((ROOT / "tests").rglob("*.py"))
    reached = [one for path in paths for one in private_reaches(path)]
    assert len(reached) < 20, "\n".join(reached)


# --- the documents ---


def laws() -> set[str]:
    """Return what has the shape of a law: it is given a subject and nothing else."""
    return {
        value.__name__
        for module in LAW_MODULES
        for value in vars(module).values()
        if getattr(value, "__module__", "") == module.__name__
        and not value.__name__.startswith("_")
        and (inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value))
        and len(inspect.signature(value).parameters) == 1
    }


def checked_laws() -> set[str]:
    suites = [suite for suite in vars(conformance).values() if isinstance(suite, Suite)]
    plain = {law.__name__ for suite in suites for law in suite.laws}
    replays = (
        *controller_laws.REPLAYS,
        *controller_laws.OVERLAPS,
        *controller_laws.POSITIONALS,
        *controller_laws.SERIALS,
    )
    return plain | {law.__name__ for law in replays}


def test_every_law_is_in_a_suite() -> None:
    assert laws() == checked_laws()


def test_every_row_of_the_mission_is_listed_once() -> None:
    rows = re.findall(
        r"^\| ([A-Z]\d+) \|", (ROOT / "docs" / "mission.md").read_text(), re.MULTILINE
    )
    assert rows == MISSION_ROWS


def test_the_proofs_of_the_mission_are_those_of_the_tests(request: pytest.FixtureRequest) -> None:
    items, page = request.config.stash[mission.COLLECTED], mission.PAGE.read_text()
    proofs = mission.proofs_of(items)
    assert set(proofs) <= set(MISSION_ROWS)
    if {item.path for item in items} == set((ROOT / "tests").rglob("test_*.py")):
        assert page == mission.with_proofs(page, proofs), "run: python -m tests.mission"
    for row, promise_and_proofs in re.findall(r"^\| ([A-Z]\d+) \|(.*)$", page, re.MULTILINE):
        for proof in proofs.get(row, ()):
            assert f"`{proof}`" in promise_and_proofs, f"{row}: run python -m tests.mission"


def test_every_law_of_the_mission_is_checked() -> None:
    named = {law for laws in mission.LAWS.values() for law in laws}
    named.update(re.findall(r"`law (\w+_\w+)`", mission.PAGE.read_text()))
    assert named <= checked_laws()


def test_every_test_of_the_mission_exists() -> None:
    for path, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", mission.PAGE.read_text()):
        assert f"def {test}(" in (ROOT / path).read_text(), test


def test_every_test_of_the_reference_implementation_has_a_counterpart() -> None:
    origins = mission.PAGE.read_text().partition("\n## Where the guarantees come from\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", origins, re.MULTILINE)
    assert len({test for test, _ in rows}) == len(rows) > 40
    for test, counterparts in rows:
        assert re.fullmatch(COUNTERPART + rf"(?:<br>{COUNTERPART})*", counterparts), test


def test_a_term_has_at_most_three_sentences_and_a_list_of_words_to_avoid() -> None:
    for entry in re.split(r"\n\n(?=\*\*)", (ROOT / "CONTEXT.md").read_text())[1:]:
        explained, _, avoided = entry.partition("\n_Avoid_:")
        assert avoided, entry
        assert len(re.findall(r"[.!?](?:\s|$)", explained)) <= 3, entry


def test_decisions_are_numbered_without_gaps() -> None:
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(found.split("-")[0]) for found in names] == list(range(1, len(names) + 1))


def test_links_in_the_documents_lead_somewhere() -> None:
    for document in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_function_of_the_guided_tour_exists() -> None:
    rows = re.findall(
        r"^\| `([\w/]+\.py)` `([\w.]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 20
    for path, qualified in rows:
        tree: ast.AST = ast.parse((SRC / path).read_text())
        for part in qualified.split("."):
            named = [
                node for node in ast.iter_child_nodes(tree) if getattr(node, "name", "") == part
            ]
            assert named, f"{path} has no {qualified}"
            tree = named[-1]


def test_the_readme_has_exactly_the_two_commands_that_make_knows() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^make (\w+)", readme, re.MULTILINE)
    assert commands == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for command in commands:
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-lowest.txt"])
def test_constraints_pin_exactly_and_name_no_index(file: str) -> None:
    lines = (ROOT / file).read_text().splitlines()
    for line in lines:
        assert line.startswith("#") or re.fullmatch(r"[\w.\-\[\]]+==[\w.+!]+", line), line


def requirements() -> dict[str, list[str]]:
    """Return what users install, by extra; "" is what everybody does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    extras = {name: extras[name] for name in extras.keys() - {"all", "bench", "dev"}}
    return {"": project["dependencies"], **extras}


def test_the_lowest_versions_that_are_tested_are_those_that_are_allowed() -> None:
    """A lower bound that nothing tests is a guess."""
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    for requirement in (one for several in requirements().values() for one in several):
        found = re.fullmatch(r"([\w-]+)(?:\[.*\])?>=([\d.]+)(?:,<[\d.]+)?", requirement)
        assert found is not None, f"{requirement} has no lower bound"
        lowest = [int(part) for part in tested[found[1]].split(".")]
        allowed = [int(part) for part in found[2].split(".")]
        assert lowest == allowed + [0] * (len(lowest) - len(allowed)), requirement


@pytest.mark.slow
def test_every_package_of_an_extra_is_imported_somewhere() -> None:
    imported = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    for extra, several in requirements().items():
        for requirement in several:
            package = re.sub(r"-(slim|sdk)$", "", re.split(r"[\[>=]", requirement)[0])
            is_imported = package.replace("-", "_") in imported
            assert is_imported, f"nothing imports {package} of the extra {extra!r}"


def test_an_app_can_be_installed_with_every_extra_at_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (every,) = project["optional-dependencies"]["all"]
    assert every == f"pylash[{','.join(sorted(requirements().keys() - {''}))}]"
