"""A client's ``session`` object → configuration, in both spellings (contract 2.1, 2.2, 4.1, 9, 17, 25).

The order of checks is contract 17's as far as it needs no session: turn detection, formats and rates, overlap conflict,
then the single fields. Nothing is changed in place: the result is a new configuration, or an error.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from duplex_protocol import turn_detection
from duplex_protocol.audio_formats import ENCODINGS, AudioFormat, Encoding, encoding_of, rate_of, split_format
from duplex_protocol.dialect import ConfigUpdate, SessionDefaults
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.readers import MAX_EXACT
from duplex_protocol.session_fields import (
    CONSUMED_KEYS,
    EXTRA_BODY_ALIASES,
    EXTRA_BODY_FIELDS,
    FIELDS,
    KEPT_ON_NULL,
    find,
    section,
    wrong_field,
)
from duplex_protocol.turn_detection import Flavour
from duplex_protocol.values import Json, SessionConfig, TurnDetection

PLAIN_RATE_HZ: Final = 24_000
NATIVE_DIALECT_RATE_HZ: Final = 16_000
DEFAULT_PLAIN_DETECTION: Final = TurnDetection(kind="semantic_vad")
IN_PARAM: Final = "audio.input.format"
OUT_PARAM: Final = "audio.output.format"


@attrs.define
class _Draft:
    """One session object while it is read: where it came from, what it changes, what it named."""

    session: Json
    base: SessionConfig
    defaults: SessionDefaults
    flavour: Flavour
    opening: bool
    changes: dict[str, Any] = attrs.field(factory=dict)
    named: set[str] = attrs.field(factory=set)

    def put(self, name: str, value: Any) -> None:
        """Set a field that the client named."""
        self.changes[name] = value
        self.named.add(name)

    def get(self, name: str) -> Any:
        """A field as it stands so far."""
        return self.changes.get(name, getattr(self.base, name))

    @property
    def native_lane(self) -> bool:
        """Whether the session is model-native, given what its extra_body says."""
        if not self.defaults.lane_by_client:
            return self.defaults.native_lane
        return bool(self.get("extra_body").get("native_duplex"))


def parse_open(session: Json, defaults: SessionDefaults, *, flavour: Flavour) -> ConfigUpdate:
    """The opening session object. Raises :class:`RemoteProtocolError` with ``param``."""
    base = SessionConfig(
        model=defaults.model,
        modalities=("text", "audio") if flavour == "native" else ("audio", "text"),
        idle_timeout_s=defaults.idle_timeout_s,
    )
    draft = _Draft(session, base, defaults, flavour, opening=True)
    if flavour == "plain" and session.get("type") not in (None, "realtime"):
        raise wrong_field("type", "session.type must be realtime")
    update = _parse(draft)
    return attrs.evolve(update, session_id=_session_id(session))


def parse_update(session: Json, base: SessionConfig, defaults: SessionDefaults, *, flavour: Flavour) -> ConfigUpdate:
    """A later session object on top of ``base``. Raises :class:`RemoteProtocolError` with ``param``."""
    return _parse(_Draft(session, base, defaults, flavour, opening=False))


def _parse(draft: _Draft) -> ConfigUpdate:
    for path in ("audio", "audio.input", "audio.output"):
        section(draft.session, path)
    _extra_body(draft)
    detection_named = _turn_detection(draft)
    _formats(draft)
    _fields(draft)
    _overlap(draft, detection_named)
    _turn_based_input(draft)
    _echoes(draft)
    config = attrs.evolve(draft.base, **draft.changes)
    return ConfigUpdate(config, frozenset(draft.named), strict=draft.flavour != "plain")


def _session_id(session: Json) -> str | None:
    for key in ("session_id", "id"):
        value = session.get(key)
        if value is not None:
            # It stands in logs: nothing that moves a terminal's cursor.
            if not isinstance(value, str) or not 0 < len(value) <= 256 or not value.isprintable():
                raise wrong_field(key, f"{key} must be a string of 1..256 printable characters")
            return value
    return None


def _extra_body(draft: _Draft) -> None:
    """Merge ``extra_body`` key by key; fold the lane alias; null removes a key."""
    sent = draft.session.get("extra_body")
    if sent is None:
        return
    if not isinstance(sent, dict):
        raise wrong_field("extra_body", "extra_body must be an object")
    folded: Json = {}
    for key, value in sent.items():
        name = EXTRA_BODY_ALIASES.get(str(key), str(key))
        if key == name or name not in sent:
            folded[name] = value
    for switch in ("native_duplex", "auto_response", "full_duplex"):
        if folded.get(switch) is not None:
            if not isinstance(folded[switch], bool):
                raise wrong_field(f"extra_body.{switch}", f"extra_body.{switch} must be a boolean")
            draft.named.add(switch)
    if folded.get("force_listen_count") is not None:
        folded["force_listen_count"] = _count(folded["force_listen_count"], "extra_body.force_listen_count")
    kept = {key: value for key, value in folded.items() if key not in EXTRA_BODY_FIELDS}
    merged = {**draft.base.extra_body, **kept}
    draft.put("extra_body", {key: value for key, value in merged.items() if value is not None})


def _count(value: Any, param: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_EXACT:
        raise RemoteProtocolError("invalid_duplex_runtime_config", f"{param} must be a whole number", param=param)
    return value


def _turn_detection(draft: _Draft) -> bool:
    """Read turn detection in either spelling; returns whether there is news of it."""
    nested_in = section(draft.session, "audio.input")
    top_named, nested_named = "turn_detection" in draft.session, "turn_detection" in nested_in
    if not top_named and not nested_named:
        return _unnamed_turn_detection(draft)
    if top_named and nested_named:
        value = turn_detection.merge_spellings(draft.session["turn_detection"], nested_in["turn_detection"])
    else:
        value = draft.session["turn_detection"] if top_named else nested_in["turn_detection"]
    detection = turn_detection.parse(value, native_lane=draft.native_lane, flavour=draft.flavour)
    draft.put("turn_detection", detection)
    if detection is not None:
        draft.changes["turn_detection_named"] = True
    _model_owned_turns(draft, detection)
    return True


def _unnamed_turn_detection(draft: _Draft) -> bool:
    """OpenAI finds turns unless told otherwise, and its clients rely on ``speech_started`` without asking for it: in
    the plain view a native model that turns are left to has ``semantic_vad``, a turn-based one ``server_vad``. The
    duplex view has none by default, also when an autostarted session changes over to it.
    """
    base = draft.base
    if draft.opening and draft.flavour == "plain":
        on_turns = turn_detection.parse({"type": "server_vad"}, native_lane=False, flavour="plain")
        detection = DEFAULT_PLAIN_DETECTION if draft.native_lane else on_turns
    elif draft.flavour == "duplex" and base.turn_detection is not None and not base.turn_detection_named:
        detection = None
    else:
        return False
    draft.changes["turn_detection"] = detection
    _model_owned_turns(draft, detection)
    return True


def _model_owned_turns(draft: _Draft, detection: TurnDetection | None) -> None:
    """``semantic_vad`` on a native model lets the model answer by itself; leaving it takes that back."""
    before = draft.base.turn_detection
    extra = dict(draft.get("extra_body"))
    if detection is not None and detection.kind == "semantic_vad":
        extra["auto_response"] = True
    elif before is not None and before.kind == "semantic_vad" and "auto_response" not in draft.named:
        extra.pop("auto_response", None)
    else:
        return
    draft.changes["extra_body"] = extra


def _formats(draft: _Draft) -> None:
    session = draft.session
    audio_in, audio_out = section(session, "audio.input"), section(session, "audio.output")
    word, object_rate = _words(IN_PARAM, session.get("input_audio_format"), audio_in.get("format"))
    rate = _first_rate((session, audio_in), object_rate)
    _one_format(draft, "input_format", IN_PARAM, word, rate)
    word, object_rate = _words(
        OUT_PARAM, session.get("output_audio_format"), session.get("response_format"), audio_out.get("format")
    )
    _one_format(draft, "output_format", OUT_PARAM, word, object_rate or _first_rate((audio_out,), None))


def _words(param: str, *spellings: Any) -> tuple[Any, Any]:
    """Word and rate of the first spelling that is there, and the rate of a later one if the first has none."""
    word: Any = None
    rate: Any = None
    for spelling in spellings:
        one_word, one_rate = split_format(spelling)
        word = one_word if word is None else word
        rate = one_rate if rate is None else rate
        if isinstance(spelling, dict) and spelling.get("channels") not in (None, 1):
            raise RemoteProtocolError("unsupported_audio_format", "audio is mono", param=param)
    return word, rate


def _first_rate(holders: tuple[Json, ...], otherwise: Any) -> Any:
    for holder in holders:
        for key in ("sample_rate_hz", "sample_rate"):
            if holder.get(key) is not None:
                return holder[key]
    return otherwise


def _one_format(draft: _Draft, name: str, param: str, word: Any, rate: Any) -> None:
    """Set one direction's format from what was named, the format so far, and the defaults of lane and flavour."""
    before: AudioFormat = getattr(draft.base, name)
    going_in = name == "input_format"
    if word is None and rate is None and not draft.opening:
        return
    if word is not None:
        encoding = encoding_of(word, param=param, direction="in" if going_in else "out")
    elif draft.opening:
        encoding = "wav" if draft.flavour == "native" and not going_in else "pcm16"
    else:
        encoding = before.encoding
    if rate is not None:
        rate_hz = rate_of(rate, code="unsupported_audio_format", param=param)
    elif encoding == before.encoding and not draft.opening:
        rate_hz = before.rate_hz
    else:
        rate_hz = default_rate_hz(draft, encoding, going_in=going_in)
    draft.changes[name] = AudioFormat(encoding, rate_hz)
    if word is not None or rate is not None:
        draft.named.add(name)


def default_rate_hz(draft: _Draft, encoding: Encoding, *, going_in: bool) -> int:
    """The rate of a format that names none (contract 2.2): OpenAI's, the model's, or the encoding's own."""
    if encoding.startswith("g711"):
        return ENCODINGS[encoding].default_rate_hz
    if draft.flavour == "plain" and encoding == "pcm16":
        return PLAIN_RATE_HZ
    if not going_in:
        return draft.defaults.output_rate_hz
    if draft.native_lane:
        return draft.defaults.input_rate_hz
    return NATIVE_DIALECT_RATE_HZ if draft.flavour == "native" else ENCODINGS[encoding].default_rate_hz


def _fields(draft: _Draft) -> None:
    """The single fields of the table; null puts a field back to its default."""
    fresh = SessionConfig(
        model=draft.base.model,
        modalities=("text", "audio") if draft.flavour == "native" else ("audio", "text"),
        idle_timeout_s=draft.defaults.idle_timeout_s,
    )
    for field in FIELDS:
        named, value = find(draft.session, field.paths)
        if not named or (field.at_open and not draft.opening):
            continue
        if value is not None:
            draft.put(field.name, field.read(value, field.param))
        elif not field.null_keeps and not (draft.flavour == "plain" and field.name in KEPT_ON_NULL):
            draft.put(field.name, getattr(fresh, field.name))


def _overlap(draft: _Draft, detection_named: bool) -> None:
    """Server VAD and overlap policy imply or exclude each other (contract 9.1)."""
    policy_named = "overlap_policy" in draft.named
    if not policy_named and not detection_named:
        return
    policy, detection = draft.get("overlap_policy"), draft.get("turn_detection")
    if detection is None:
        if policy_named and policy == "barge_in_on_speech" and draft.flavour != "native":
            raise turn_detection.refused("overlap_policy barge_in_on_speech needs server_vad")
        if not policy_named:
            draft.changes["overlap_policy"] = "listen_only"
        return
    implied = "barge_in_on_speech" if draft.native_lane else "listen_only"
    if policy_named and policy != implied:
        if not draft.native_lane:
            raise turn_detection.refused(
                "overlap_policy barge_in_on_speech needs a model-native session",
                code="server_vad_requires_native_duplex",
                param="overlap_policy",
            )
        raise turn_detection.refused(f"server_vad on this model implies overlap_policy {implied}")
    draft.changes["overlap_policy"] = implied


def _turn_based_input(draft: _Draft) -> None:
    """Server VAD of a turn-based session hears 16 or 24 kHz PCM16 (contract 9.1); OpenAI's view has more formats."""
    if draft.native_lane or draft.flavour == "plain" or draft.get("turn_detection") is None:
        return
    heard: AudioFormat = draft.get("input_format")
    if heard.encoding != "pcm16" or heard.rate_hz not in (16_000, 24_000):
        raise turn_detection.refused("server_vad hears mono pcm16 at 16 or 24 kHz", param=IN_PARAM)


def _echoes(draft: _Draft) -> None:
    """What is only repeated to the client: its ``audio`` object and the keys that we do not know."""
    sent_audio = draft.session.get("audio")
    if sent_audio is not None:
        draft.put("audio", _merged(draft.base.audio or {}, sent_audio))
    strange = {key: value for key, value in draft.session.items() if key not in CONSUMED_KEYS}
    if strange:
        merged = {**draft.base.unknown, **strange}
        draft.changes["unknown"] = {key: value for key, value in merged.items() if value is not None}


def _merged(old: Json, new: Json) -> Json:
    """``new`` over ``old``, objects member by member; null removes."""
    result = dict(old)
    for key, value in new.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = _merged(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = value
    return result
