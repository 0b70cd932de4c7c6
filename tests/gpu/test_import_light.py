"""What importing the package costs: no tensor library before a network is asked for."""

from __future__ import annotations

import subprocess
import sys

LIGHT = ["duplex_gpu", "duplex_gpu.model_thread", "duplex_gpu.job_thread", "duplex_gpu.clauses", "duplex_gpu.phonemes"]
HEAVY = ["torch", "onnxruntime", "onnx", "trio", "silero_vad", "moonshine_voice"]


def test_threads_and_text_need_no_tensor_library() -> None:
    program = f"import sys, {', '.join(LIGHT)}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
