"""``deploy/demo.yaml`` documents every key, and says nothing else than the defaults."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import yaml

from trio_duplex.cli.shared import find_deployment
from trio_duplex.config import Deployment, load_deployment, structure
from trio_duplex.models.demo import DemoOptions
from trio_duplex.session.settings import SessionSettings

FILE = Path(__file__).parents[2] / "deploy" / "demo.yaml"


def test_it_is_what_runs_when_no_file_is_given() -> None:
    written = load_deployment(FILE)
    built_in, _ = find_deployment(None)
    assert attrs.evolve(written, options={}) == built_in
    assert structure(written.options, DemoOptions, where="options") == DemoOptions()


def test_it_names_every_key() -> None:
    raw = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    assert raw.keys() == {field.name for field in attrs.fields(Deployment)}
    assert raw["duplex_session"].keys() == {field.name for field in attrs.fields(SessionSettings)}
    assert raw["options"].keys() == {field.name for field in attrs.fields(DemoOptions)}


def test_the_recordings_of_the_demo_come_with_the_package(tmp_path: Path) -> None:
    from trio_duplex.showcase.recordings import FIRST, SECOND, bundled

    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        first, second = bundled(FIRST), bundled(SECOND)
    finally:
        os.chdir(before)
    assert (first.rate_hz, round(first.duration_ms)) == (16_000, 5_300)
    assert (second.rate_hz, round(second.duration_ms)) == (16_000, 2_786)
    # Where a person hears them begin and end; a speech detector says 288 to 5152 and 512 to 2272.
    assert abs(first.speech_start_ms - 290) <= 50
    assert abs(first.speech_end_ms - 5_100) <= 150
    assert abs(second.speech_start_ms - 510) <= 50
    assert abs(second.speech_end_ms - 2_300) <= 150
