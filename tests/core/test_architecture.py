"""The shape of the code: no circle of imports, one class for a name, files that hold one idea, verbs and nouns."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from ddp.core.policies import POLICIES

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bench", "ddp", "models")
LONGEST = 300
MOST_FILES = {
    **{
        "bench/audit": 12,
        "bench/command": 12,
        "bench/report": 13,
        "bench/validate": 12,
        "ddp/core": 12,
        "ddp/replica": 13,
    },
    **{"tests/bench": 30, "tests/runtime": 12},
}
"""Most files of a room in a folder, `__init__.py` among them."""
REGISTRIES = {"bench/command/verbs", "bench/report/sections", "bench/validate/checks"}
"""Rooms with a file for each member of a registry."""
BY_REGISTRY = {"Backend", "Reducer", "Transport"}
"""What modules of a registry all call their own: the name is how they are found."""


@cache
def modules() -> dict[str, ast.Module]:
    """Dotted name -> source, of all that is shipped."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return {_dotted(file): ast.parse(file.read_text(encoding="utf-8")) for file in files}


@cache
def nodes(name: str) -> list[ast.AST]:
    """All that a module consists of."""
    return list(ast.walk(modules()[name]))


def _dotted(file: Path) -> str:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return f"bench.{name}" if file.is_relative_to(ROOT / "models") else name


def imports(module: str) -> set[str]:
    """What is imported of our own, wherever it stands: inside functions and for types alone as well."""
    found: set[str] = set()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else node.module for name in inner}
    return found & modules().keys()


def test_no_files_import_each_other_in_a_circle() -> None:
    TopologicalSorter({name: imports(name) - {name} for name in modules()}).prepare()  # names a circle


def test_a_name_is_that_of_one_class() -> None:
    places = defaultdict(list)
    for name in modules():
        for node in nodes(name):
            if isinstance(node, ast.ClassDef) and node.name not in BY_REGISTRY:
                places[node.name].append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("package", [*PACKAGES, "benchmarks", "tests"])
def test_a_file_holds_one_idea(package: str) -> None:
    lines = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in (ROOT / package).rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


@pytest.mark.parametrize("folder", MOST_FILES)
def test_rooms_have_few_files_and_say_what_they_own(folder: str) -> None:
    rooms = [ROOT / folder, *(path.parent for path in (ROOT / folder).rglob("*/__init__.py"))]
    files = {str(room.relative_to(ROOT)): len(list(room.glob("*.py"))) for room in rooms}
    assert {room: count for room, count in files.items() if count > MOST_FILES[folder] and room not in REGISTRIES} == {}
    assert [str(room) for room in rooms if not ast.get_docstring(ast.parse((room / "__init__.py").read_text()))] == []


NO_VERBS = """
    a above after all also an as at before between both by each every everything everybody for from how in it its no none
    nothing of one out per something that the there they this those to twice until what when where whether which who why
    with within
    anchor buffer communication content done emulated entry epoch exact flat gradient layer learning machine memory mode
    nested residual rounded said side silence smoothed speed status text training wall
"""
"""What descriptions began with that did not say what a function does. A word that ends in s is mostly such a noun, too."""
THIRD_PERSON = frozenset({"averages", "raises", "returns", "writes"})
NO_NOUNS = frozenset({"asked", "became", "brought", "found", "held", "one", "said", "told"})
"""Names that say nothing of what they stand for."""


def begins_with_a_verb(text: str) -> bool:
    """Whether the first word is none of those that are surely no verb in the imperative or third person."""
    word = text.split()[0].rstrip(".,:;")
    low = word.lower()
    noun = low.endswith("s") and not low.endswith("ss") and low not in THIRD_PERSON
    return word.isalpha() and word[1:].islower() and low not in NO_VERBS.split() and not noun


def public(node: ast.AST, place: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """(place, code) of public functions and methods; none of properties, which are nouns."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or child.name.startswith("_"):
            continue
        if isinstance(child, ast.ClassDef):
            yield from public(child, f"{place}.{child.name}")
        elif not any("property" in ast.unparse(line) for line in child.decorator_list):
            yield f"{place}.{child.name}", child


OF_THE_LANGUAGE = {
    "AssertionError",
    "AttributeError",
    "IndexError",
    "KeyError",
    "StopIteration",
    "SystemExit",
    "TypeError",
}
"""What protocols of Python, or mistakes in this code, raise."""


def raised(node: ast.AST) -> Iterator[str]:
    """Names of the exceptions that code raises itself and does not handle."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call):
            yield ast.unparse(child.exc.func).rpartition(".")[2]
        if isinstance(child, ast.Try) and child.handlers:
            for each in (*child.handlers, *child.orelse, *child.finalbody):
                yield from raised(each)
        else:
            yield from raised(child)


def named(module: str) -> Iterator[str]:
    """What functions, their arguments and variables are called."""
    for node in nodes(module):
        match node:
            case ast.FunctionDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name


@pytest.mark.parametrize("package", PACKAGES)
def test_descriptions_begin_with_a_verb(package: str) -> None:
    found = [pair for name, tree in modules().items() if _of(name, package) for pair in public(tree, name)]
    texts = {place: text for place, node in found if (text := ast.get_docstring(node))}
    assert [f"{place}: {text.splitlines()[0]}" for place, text in texts.items() if not begins_with_a_verb(text)] == []


def test_descriptions_name_the_errors_that_are_raised() -> None:
    for name, tree in modules().items():
        for place, node in public(tree, name):
            if text := ast.get_docstring(node):
                names = {each for each in raised(node) if each[0].isupper()} - OF_THE_LANGUAGE
                assert [each for each in names if each not in text] == [], place


@pytest.mark.parametrize("package", PACKAGES)
def test_variables_are_nouns(package: str) -> None:
    names = [(name, each) for name in modules() if _of(name, package) for each in named(name)]
    assert [f"{place}: {name}" for place, name in names if name in NO_NOUNS] == []


@pytest.mark.parametrize(
    ("text", "verb"),
    [
        ("Return the sum.", True),
        ("Averages gradients.", True),
        ("Pass it on.", True),
        ("Step the optimizer.", True),
        ("The sum of both.", False),
        ("Whether it is there.", False),
        ("Samples by rank.", False),
        ("`value` with units.", False),
        ("ValueError for a typo.", False),
    ],
)
def test_a_verb_is_told_from_other_words(text: str, verb: bool) -> None:
    assert begins_with_a_verb(text) == verb


def _of(module: str, package: str) -> bool:
    return package == ("models" if module.startswith("bench.models") else module.split(".")[0])


METRICS_SYNC = ("bench/results/analyze.py", "sync")
"""A section of `metrics.json` that is called so."""


def test_make_test_leaves_out_no_file_of_tests() -> None:
    """`make slow` has second combinations, and nothing alone."""
    for file in (ROOT / "tests").rglob("test_*.py"):
        text = file.read_text(encoding="utf-8")
        if "mark.slow" not in text:
            continue
        tree = ast.parse(text)
        tests = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")]
        marks = [[ast.unparse(each) for each in test.decorator_list] for test in tests]
        assert not tests or any("pytest.mark.slow" not in each for each in marks), file


def test_policies_are_named_in_their_own_rooms_only() -> None:
    """A new policy is one file and one line: nobody else knows which there are. Words of documentation are free."""
    named, imported = set(), set()
    for name in modules():
        if name.startswith("ddp.core.policies"):
            continue
        place = f"{name.replace('.', '/')}.py"
        for node in nodes(name):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in POLICIES:
                named.add((place, node.value))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ddp.core.policies."):
                imported.add((place, node.module))
    assert named == {METRICS_SYNC}
    assert imported == set()


def test_hydra_is_used_by_its_public_names_alone() -> None:
    files = [file for folder in (*PACKAGES, "hydra_plugins") for file in (ROOT / folder).rglob("*.py")]
    assert not [file for file in files if "hydra._" in file.read_text(encoding="utf-8")]
