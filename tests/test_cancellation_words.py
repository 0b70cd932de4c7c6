"""Every public async function says what cancellation does to it, itself or where its docstring or base class points."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("trio_duplex", "protocol/duplex_protocol", "gpu/duplex_gpu")
WORDS = re.compile(r"cancel|checkpoint|shielded", re.IGNORECASE)
REFERENCE = re.compile(r":(?:class|meth):`~?([\w.]+)`|`([A-Z]\w+(?:\.\w+)?)`")
DUNDERS = {"__aenter__", "__aexit__", "__anext__"}


@attrs.frozen
class Function:
    """One async function; ``owner`` is the class that it stands in, "" for none."""

    where: str
    owner: str
    name: str
    doc: str


@attrs.define
class Code:
    """All classes by name (bases, methods' docstrings), and the functions that are asked."""

    bases: dict[str, set[str]] = attrs.field(factory=dict)
    docs: dict[tuple[str, str], str] = attrs.field(factory=dict)
    functions: list[Function] = attrs.field(factory=list)

    def read(self, source: str, where: str) -> None:
        for owner, node in _walk(ast.parse(source), ""):
            if isinstance(node, ast.ClassDef):
                names = (ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
                self.bases.setdefault(node.name, set()).update(names)
                continue
            doc = ast.get_docstring(node) or ""
            self.docs[owner, node.name] = f"{self.docs.get((owner, node.name), '')} {doc}"
            public = not node.name.startswith("_") or node.name in DUNDERS
            if public and isinstance(node, ast.AsyncFunctionDef):
                self.functions.append(Function(f"{where}:{node.lineno}", owner, node.name, doc))

    def says(self, owner: str, name: str, doc: str, seen: frozenset[tuple[str, str]] = frozenset()) -> bool:
        """Whether this docstring, one that it names, or that of the method it implements speaks of cancellation."""
        if WORDS.search(doc):
            return True
        if (owner, name) in seen:
            return False
        places = {(base, name) for base in self.bases.get(owner, ())}
        for match in REFERENCE.finditer(doc):
            path = (match[1] or match[2]).split(".")
            places |= {(path[-1], name), (path[-2] if len(path) > 1 else owner, path[-1])}
        seen |= {(owner, name)}
        return any(
            self.says(*place, self.docs[place], seen) for place in places if place in self.docs or self._known(place)
        )

    def _known(self, place: tuple[str, str]) -> bool:
        """A class that inherits the method without defining it."""
        if place[0] not in self.bases:
            return False
        self.docs.setdefault(place, "")
        return True

    def silent(self) -> list[str]:
        return [
            f"{f.where} {f.owner}.{f.name}".replace(" .", " ")
            for f in self.functions
            if not self.says(f.owner, f.name, f.doc)
        ]


def _walk(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Classes and functions, but not what is defined inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield owner, child
            yield from _walk(child, child.name)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner, child
        elif isinstance(child, ast.If | ast.Try | ast.With):
            yield from _walk(child, owner)


def test_every_public_async_function_speaks_of_cancellation() -> None:
    code = Code()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            code.read(path.read_text(), str(path.relative_to(ROOT)))
    assert len(code.functions) > 200
    assert code.silent() == []


SILENT = {
    "nothing": 'async def f() -> None:\n    "Do it."',
    "no docstring": "async def f() -> None: ...",
    "a private class's public method": 'class _C:\n    async def f(self) -> None:\n        "Do it."',
    "a base that says nothing": (
        'class B:\n    async def f(self): "Do it."\nclass C(B):\n    async def f(self): "See :class:`B`."'
    ),
    "under a condition": 'if True:\n    async def f(): "Do it."',
    "an unknown reference": 'async def f(): "See :class:`Unknown`."',
}
SAYS = {
    "itself": 'async def f() -> None:\n    "Do it. Cancellation: not done."',
    "its base": 'class B:\n    async def f(self): "A checkpoint."\nclass C(B):\n    async def f(self): ...',
    "its base's base": (
        'class A:\n    async def f(self): "A checkpoint."\nclass B(A): ...\nclass C(B):\n    async def f(self): ...'
    ),
    "the class it names": (
        'class P:\n    async def f(self): "Cancelled: lost."\nclass C:\n    async def f(self): "See :class:`x.P`."'
    ),
    "the method it names": (
        'class C:\n    async def g(self): "Cancelled: lost."\n    async def f(self): "As :meth:`g`."'
    ),
    "a private function": 'async def _f(): "Do it."',
}


@pytest.mark.parametrize("source", SILENT.values(), ids=SILENT)
def test_silence_is_found(source: str) -> None:
    code = Code()
    code.read(source, "x.py")
    assert [where.rpartition(" ")[2].rpartition(".")[2] for where in code.silent()][-1:] == ["f"]


@pytest.mark.parametrize("source", SAYS.values(), ids=SAYS)
def test_where_it_may_be_said(source: str) -> None:
    code = Code()
    code.read(source, "x.py")
    assert code.silent() == []
