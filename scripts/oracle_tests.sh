#!/bin/sh
# Runs the PersonaPlex tests that compare with the reference package moshi 0.2.13.
#
#   scripts/oracle_tests.sh [python] [pytest arguments]
#
# The package is installed into .oracle, which only this script puts on the path, so the project's own environment
# stays as it is. `python` (default .venv/bin/python) must have the project's test requirements.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${1:-.venv/bin/python}
[ $# -gt 0 ] && shift
if [ ! -e .oracle/.done ]; then
    rm -rf .oracle
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --target .oracle --no-deps moshi==0.2.13
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --target .oracle \
        -c constraints.txt -r tests/gpu/personaplex/requirements-oracle.txt
    touch .oracle/.done
fi
NO_TORCH_COMPILE=1 PYTHONPATH=".oracle:gpu:.${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -m pytest -q \
    --confcutdir=tests/gpu/personaplex tests/gpu/personaplex -m slow "$@"
