"""Camera frames: several frames of one second tiled into one picture (contract section 21.6).

Needs Pillow, which is imported only inside the functions, since most clients have no camera.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, cast

import pybase64

if TYPE_CHECKING:
    from PIL.Image import Image

SEAM_PX = 6
"""Width of the black line between cells."""

_WHITE = (255, 255, 255)
_BLACK = (0, 0, 0)


def concat_frames(frames: Sequence[Image]) -> Image:
    """Tile pictures in one RGB picture, left to right, top to bottom.

    1 frame is a single cell, 4 are 2x2, 2 or 3 form the row or the column that is nearer to a square (a row on a
    tie), more a row. Cells have the largest width and the largest height; other shapes are scaled to fit and
    letterboxed on white. ValueError without frames; ImportError naming the extra when Pillow is missing.
    """
    if not frames:
        raise ValueError("concat_frames needs at least one frame")
    image_module, ops_module = _pillow()
    cell_w = max(frame.width for frame in frames)
    cell_h = max(frame.height for frame in frames)
    rows, columns = _grid(len(frames), cell_w, cell_h)
    size = (columns * cell_w + (columns - 1) * SEAM_PX, rows * cell_h + (rows - 1) * SEAM_PX)
    canvas = cast("Image", image_module.new("RGB", size, _BLACK))
    for index, frame in enumerate(frames):
        row, column = divmod(index, columns)
        cell = ops_module.pad(frame.convert("RGB"), (cell_w, cell_h), color=_WHITE)
        canvas.paste(cell, (column * (cell_w + SEAM_PX), row * (cell_h + SEAM_PX)))
    return canvas


def concat_frames_b64(frames: Sequence[str | bytes], *, quality: int = 95) -> str:
    """`concat_frames` for encoded pictures (base64 text, data URLs or raw bytes); gives a base64 JPEG."""
    if not frames:
        raise ValueError("concat_frames_b64 needs at least one frame")
    image_module, _ = _pillow()
    pictures = [image_module.open(io.BytesIO(_encoded(frame))) for frame in frames]
    out = io.BytesIO()
    concat_frames(pictures).save(out, format="JPEG", quality=quality)
    return pybase64.b64encode(out.getvalue()).decode("ascii")


def unit_subframe_offsets(stack_frames: int, *, unit_s: float = 1.0) -> list[float]:
    """When, inside a unit, the extra frames of a stack of `stack_frames` are taken: i/N of the unit for i = 1..N-1."""
    return [index / stack_frames * unit_s for index in range(1, stack_frames)]


def _grid(count: int, cell_w: int, cell_h: int) -> tuple[int, int]:
    """(rows, columns). For 2 or 3 cells the column of wide pictures and the row of tall ones is nearer to a square."""
    if count == 4:
        return 2, 2
    if count in (2, 3) and cell_w > cell_h:
        return count, 1
    return 1, count


def _encoded(frame: str | bytes) -> bytes:
    if isinstance(frame, bytes):
        return frame
    _, comma, payload = frame.partition(",") if frame.startswith("data:") else ("", "", "")
    return pybase64.b64decode(payload if comma else frame, validate=True)


def _pillow() -> tuple[ModuleType, ModuleType]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError(
            "stacking camera frames needs Pillow, which comes with the extra 'video': pip install 'trio-duplex[video]'"
        ) from error
    return Image, ImageOps
