"""Triton kernels of the unit step. Import only where Triton is installed; `TRITON_INTERPRET=1` runs them on a CPU."""
