"""The one way an onnxruntime session is opened in this package."""

from __future__ import annotations

from pathlib import Path

import onnxruntime

__all__ = ["open_session"]


def open_session(model: Path | bytes) -> onnxruntime.InferenceSession:
    """A CPU session over a model file or its bytes, with exactly one thread: the caller's.

    More threads would spin between calls and take the cores from the loop and the model thread
    (measured: twice the lateness for a tenth of the time).  ``run`` releases the GIL.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors only; its warnings about foreign models are no news for a user
    return onnxruntime.InferenceSession(
        model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
    )
