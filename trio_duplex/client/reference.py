"""The table of the client's public names for docs/client.md, made from the code itself.

Run: python -m trio_duplex.client.reference docs/client.md   (rewrites the part between the two markers)
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import trio

import trio_duplex.client as package
from trio_duplex.client.events import EVENT_CLASSES

BEGIN = "<!-- begin of the generated table: python -m trio_duplex.client.reference docs/client.md -->"
END = "<!-- end of the generated table -->"

MANY_FIELDS = 3

TITLES = {
    "21.1": "Values, errors, transports",
    "21.2": "Events",
    "21.3": "ResponseHandle",
    "21.4": "DuplexClient",
    "21.5": "EventCollector",
    "21.6": "Helpers, presets, pictures, in process",
}

SECTIONS: dict[str, str] = {
    "21.1": """PCM16_SAMPLE_RATE PCM16_BYTES_PER_SAMPLE DUPLEX_UNIT_MS DUPLEX_FIRST_UNIT_MS duplex_unit_boundary_ms
        AudioFormat Deadlines SessionConfig ReconnectPolicy DuplexClientError DuplexConnectionError DuplexProtocolError
        DuplexSessionClosedError WebSocketTransport ConnectFactory WebSocketConnector""",
    "21.2": """DuplexEvent SessionCreated SessionResumed SessionUpdated SessionClosed SessionExpired ResponseCreated
        ResponseDone AudioDelta TranscriptDelta TextDelta ListenDecision SpeakDecision ErrorEvent ConnectionResumed
        wrap_event""",
    "21.3": "ResponseHandle",
    "21.4": "DuplexClient ClientStatistics",
    "21.5": "EventCollector",
    "21.6": """audio_data_url image_data_url reference_audio_data_url read_pcm16_wav write_pcm16_wav chunk_period_ms
        has_residual_model_unit build_realtime_url wait_for_condition acknowledge_collected_playback
        summarize_session_request_metrics distribution_summary metric_mean summarize_stage_metrics
        presets.minicpmo_4_5.create_duplex_session_config presets.personaplex.create_duplex_session_config
        presets.nemotron_voicechat.create_duplex_session_config presets.neutral.create_duplex_session_config
        concat_frames concat_frames_b64 unit_subframe_offsets InlineDuplexClient""",
}
"""Where each public name has its place; what it means there is in the contract's section of that number."""

OWN = frozenset(
    {
        "ConnectFactory",
        "Deadlines",
        "WebSocketConnector",
        "ClientStatistics",
        "WebSocketTransport.is_alive",
        "WebSocketConnector.prepare",
        "SessionConfig.replace",
        "ReconnectPolicy.uniform",
        "DuplexClient.truncate_item",
        "DuplexClient.statistics",
        "ResponseHandle.dropped_chunks",
        "DuplexEvent.received_at_s",
        "SessionUpdated.session",
        "SessionClosed.deadlines",
        "SessionClosed.reason",
        "SessionExpired.deadlines",
        "ResponseDone.deadlines",
        "SessionExpired.reason",
        "ResponseDone.status",
        "AudioDelta.format",
        "AudioDelta.audio_duration_ms",
        "ErrorEvent.param",
        "ConnectionResumed.attempt",
        "EventCollector.audio_ms",
        "EventCollector.heard_response_ids",
        "presets.neutral.create_duplex_session_config",
    }
)
"""Names that the contract does not have: additions of this client."""


@attrs.frozen
class Row:
    """One public name."""

    name: str
    form: str
    """Signature, or type and default."""
    text: str
    section: str

    def __str__(self) -> str:
        section = self.section if not self.own else f"{self.section}, own"
        cells = (f"`{self.name}`", f"`{self.form}`" if self.form else "", self.text, section)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    @property
    def own(self) -> bool:
        """Whether this client adds it to the contract."""
        top = self.name.split(".")[0]
        return self.name in OWN or (top in OWN and top != "presets")


def rows() -> Iterator[Row]:
    """Every public name, section by section. Raises KeyError for an exported name that has no place here."""
    placed = {name: section for section, names in SECTIONS.items() for name in names.split()}
    for name in package.__all__:
        if name != "presets" and name not in placed:
            raise KeyError(f"{name} is exported and has no section in trio_duplex.client.reference")
    for name, section in placed.items():
        found: object = package
        for part in name.split("."):
            found = getattr(found, part)
        yield from _rows_of(name, found, section)


def table() -> str:
    """The generated part of the page, markers included."""
    lines = [BEGIN]
    everything = list(rows())
    for section, title in TITLES.items():
        lines += ["", f"### {title} ({section})", "", "| name | signature or type = default | what it is | contract |"]
        lines += ["|---|---|---|---|", *(str(row) for row in everything if row.section == section)]
    return "\n".join([*lines, "", END])


def replace_table(page: str) -> str:
    """The page with a fresh table. Raises ValueError when it has no markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no markers for the generated table")
    return before + table() + after


def _rows_of(name: str, found: object, section: str) -> Iterator[Row]:
    if inspect.isclass(found):
        yield Row(name, _constructor(found), _first_sentence(found.__doc__), section)
        yield from _members(name, found, section)
    elif inspect.isfunction(found):
        yield Row(name, _signature(found), _first_sentence(inspect.getdoc(found)), section)
    else:
        form = f"= {found!r}" if isinstance(found, int | str) else ""
        yield Row(name, form, _constant_text(name), section)


def _members(name: str, cls: type, section: str) -> Iterator[Row]:
    """Fields first, then properties and methods, as they stand in the class."""
    fields = {field.name: field for field in attrs.fields(cls)} if attrs.has(cls) else {}
    for member, (annotation, text) in _annotated(cls).items():
        default = ""
        if member in fields and fields[member].default is not attrs.NOTHING:
            value = fields[member].default
            default = f" = {value.factory()!r}" if hasattr(value, "factory") else f" = {_value(value)}"
        yield Row(f"{name}.{member}", f"{annotation}{default}", text, section)
    for member, value in vars(cls).items():
        shown = f"{name}.{member}"
        if member.startswith("_") and not (member in _SPOKEN and inspect.isfunction(value)):
            continue
        if any(hasattr(base, member) for base in cls.__mro__[1:-1]):
            continue  # said at the base
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if isinstance(value, property):
            form = str(inspect.signature(value.fget).return_annotation) if value.fget else ""
            yield Row(shown, form, _first_sentence(inspect.getdoc(value)), section)
        elif inspect.isfunction(function):
            yield Row(shown, _signature(function), _first_sentence(inspect.getdoc(function)), section)


_SPOKEN = frozenset({"__aenter__", "__aexit__", "__aiter__"})


def _constructor(cls: type) -> str:
    """How one is made; where fields follow in their own rows, and for events, it is said shorter."""
    if issubclass(cls, package.DuplexEvent):
        return ", ".join(kind for kind, found in EVENT_CLASSES.items() if found is cls)
    if inspect.isabstract(cls) or (issubclass(cls, BaseException) and "__init__" not in vars(cls)):
        return ""
    if attrs.has(cls) and sum(field.init for field in attrs.fields(cls)) > MANY_FIELDS:
        return "(*, fields as below)"
    return _signature(cls)


def _signature(found: Callable[..., object]) -> str:
    """Names, types and defaults, without `self`."""
    signature = inspect.signature(found)
    shown: list[str] = []
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            if not any(one.startswith("*") for one in shown):
                shown.append("*")
        kind = parameter.kind
        stars = "*" if kind is parameter.VAR_POSITIONAL else "**" if kind is parameter.VAR_KEYWORD else ""
        default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
        shown.append(f"{stars}{parameter.name}: {parameter.annotation}{default}")
    prefix = "async " if inspect.iscoroutinefunction(found) else ""
    returned = "" if inspect.isclass(found) else f" -> {signature.return_annotation}"
    return f"{prefix}({', '.join(shown)}){returned}"


def _value(default: object) -> str:
    if default is trio.TASK_STATUS_IGNORED:
        return "trio.TASK_STATUS_IGNORED"
    if inspect.ismethod(default):
        return f"{default.__module__ or 'random'}.{default.__name__}"
    return repr(default)


def _annotated(cls: type) -> dict[str, tuple[str, str]]:
    """Public annotated names of the class body → (annotation, first sentence of the string below it)."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, following in zip(body.body, [*body.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        member = statement.target.id
        annotation = ast.unparse(statement.annotation)
        if not member.startswith("_") and not annotation.startswith("ClassVar"):
            found[member] = (annotation, _string(following))
    return found


def _constant_text(name: str) -> str:
    """The string below a module's constant, looked up in the module that defines it."""
    for module in (package.values, package.transport):
        statements = ast.parse(inspect.getsource(module)).body
        for statement, following in zip(statements, [*statements[1:], None], strict=True):
            if isinstance(statement, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == name for target in statement.targets
            ):
                return _string(following)
    return ""


def _string(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return _first_sentence(value) if isinstance(value, str) else ""
    return ""


def _first_sentence(doc: str | None) -> str:
    """The first paragraph's first sentence, on one line."""
    if not doc:
        return ""
    paragraph = " ".join(inspect.cleandoc(doc).split("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    return sentence + "." if stop else paragraph


def main() -> None:
    """Rewrite the page named on the command line."""
    path = Path(sys.argv[1])
    path.write_text(replace_table(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
