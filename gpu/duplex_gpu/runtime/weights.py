"""Reading safetensors checkpoints: everything wrong with a file is said in one report before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType

import attrs
import torch
from safetensors import SafetensorError, safe_open

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes in all) after each tensor."""

_ELEMENT_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
_SHOWN = 4


class CheckpointError(Exception):
    """A checkpoint file cannot be used. `str()` is one line; the lists hold every finding.

    Attributes: `path`, `reason`, `missing` (names), `unexpected` (names), `misshapen` ((name, found, wanted)).
    """

    def __init__(
        self,
        path: Path,
        reason: str,
        missing: Iterable[str] = (),
        unexpected: Iterable[str] = (),
        misshapen: Iterable[tuple[str, tuple[int, ...], tuple[int, ...]]] = (),
    ) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.misshapen = tuple(misshapen)


@attrs.frozen
class TensorInfo:
    """Shape and stored element type (safetensors' name for it) of one tensor."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * _ELEMENT_BYTES.get(self.dtype, 1)


class TensorFile:
    """One open safetensors file whose tensors go straight to `device`. A context manager.

    Raises `CheckpointError` on entry for a missing, truncated or foreign file.
    """

    def __init__(self, path: Path, device: torch.device, progress: Progress | None = None) -> None:
        self.path = path
        self.device = device
        self.infos: dict[str, TensorInfo] = {}
        self._progress = progress
        self._done = 0
        self._total = 0

    def __enter__(self) -> TensorFile:
        if not self.path.is_file():
            raise CheckpointError(self.path, "no such file")
        try:
            self._handle = safe_open(str(self.path), framework="pt", device=str(self.device))
            opened = self._handle.__enter__()  # type: ignore[no-untyped-call]
            for name in opened.keys():  # noqa: SIM118 - the handle is no mapping
                part = opened.get_slice(name)
                self.infos[name] = TensorInfo(tuple(part.get_shape()), str(part.get_dtype()))
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(self.path, f"truncated or not a safetensors file ({error})") from error
        self._open = opened
        self._total = sum(info.bytes for info in self.infos.values())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.__exit__(kind, value, trace)  # type: ignore[no-untyped-call]

    def check(self, expected: Mapping[str, tuple[int, ...]], ignored: Iterable[str] = ()) -> None:
        """Compare names and shapes with `expected`; names in `ignored` may be there and are not read.

        Raises `CheckpointError` that lists every missing, unexpected and misshapen tensor.
        """
        found = set(self.infos)
        missing = sorted(set(expected) - found)
        unexpected = sorted(found - set(expected) - set(ignored))
        misshapen = [
            (name, self.infos[name].shape, tuple(shape))
            for name, shape in sorted(expected.items())
            if name in found and self.infos[name].shape != tuple(shape)
        ]
        parts = []
        if missing:
            parts.append(f"{len(missing)} missing ({_some(missing)})")
        if unexpected:
            parts.append(f"{len(unexpected)} unexpected ({_some(unexpected)})")
        if misshapen:
            shown = [f"{name} is {list(has)}, wanted {list(wants)}" for name, has, wants in misshapen]
            parts.append(f"{len(misshapen)} misshapen ({_some(shown)})")
        if parts:
            raise CheckpointError(self.path, "tensors: " + "; ".join(parts), missing, unexpected, misshapen)

    def take(self, name: str, dtype: torch.dtype | None = None, rows: int | None = None) -> torch.Tensor:
        """The tensor on the device, converted to `dtype`; with `rows` only its first rows are read."""
        info = self.infos[name]
        try:
            if rows is None or rows >= info.shape[0]:
                tensor: torch.Tensor = self._open.get_tensor(name)
            else:
                tensor = self._open.get_slice(name)[:rows]
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(self.path, f"{name} cannot be read ({error})") from error
        if dtype is not None and tensor.dtype != dtype:
            tensor = tensor.to(dtype)
        self._done += info.bytes
        if self._progress is not None:
            self._progress(self._done, self._total)
        return tensor


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
