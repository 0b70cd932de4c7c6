"""Where the codec keeps its samples: an arena per row, with room before each convolution's input."""

from __future__ import annotations

import attrs
import torch

from duplex_gpu.personaplex.config import DECODER_STRIDES, ENCODER_STRIDES, FRAME_SAMPLES, MimiConfig

_ALIGN = 16


@attrs.frozen
class Window:
    """A convolution's input in the arena: `context` old steps, then `length` new ones, `channels` numbers each."""

    offset: int
    context: int
    length: int
    channels: int

    @property
    def new(self) -> int:
        """Where the new steps start."""
        return self.offset + self.context * self.channels


@attrs.frozen(eq=False)
class Half:
    """Arena of the encoder or the decoder: windows by name, width, and for each number of a slot's saved state the
    arena place it is loaded to and the place it is saved from (int32 [state])."""

    windows: dict[str, Window]
    width: int
    load_to: torch.Tensor
    save_from: torch.Tensor

    @property
    def state(self) -> int:
        return self.load_to.numel()


def _half(parts: list[tuple[str, int, int, int]], device: torch.device) -> Half:
    windows: dict[str, Window] = {}
    load: list[torch.Tensor] = []
    save: list[torch.Tensor] = []
    at = 0
    for name, context, length, channels in parts:
        at = -(-at // _ALIGN) * _ALIGN
        windows[name] = Window(at, context, length, channels)
        kept = torch.arange(context * channels, dtype=torch.int32)
        load.append(kept + at)
        save.append(kept + at + length * channels)
        at += (context + length) * channels
    width = -(-at // _ALIGN) * _ALIGN
    return Half(windows, width, torch.cat(load).to(device), torch.cat(save).to(device))


def encoder_half(config: MimiConfig, device: torch.device) -> Half:
    """Windows `in`, then per stage j `block{j}` (the residual block's input) and `stride{j}`, then `out` and `down`."""
    channels, length = config.filters, FRAME_SAMPLES
    parts = [("in", 6, length, 1)]
    for j, stride in enumerate(ENCODER_STRIDES):
        parts += [(f"block{j}", 2, length, channels), (f"stride{j}", stride, length, channels)]
        length //= stride
        channels *= 2
    parts += [("out", 2, length, channels), ("down", 2, length, config.dim)]
    return _half(parts, device)


def decoder_half(config: MimiConfig, device: torch.device) -> Half:
    """Windows `up`, `in`, then per stage j `stride{j}` (input of the transposed one) and `block{j}`, then `out`."""
    channels, length = config.filters * 2 ** len(DECODER_STRIDES), 2
    parts = [("up", 1, 1, config.dim), ("in", 6, length, config.dim)]
    for j, stride in enumerate(DECODER_STRIDES):
        parts.append((f"stride{j}", 1, length, channels))
        length *= stride
        channels //= 2
        parts.append((f"block{j}", 2, length, channels))
    parts.append(("out", 2, length, channels))
    return _half(parts, device)
