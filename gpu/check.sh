#!/usr/bin/env bash
# Checks and times the CUDA device on a card, from a built wheel and built tests; needs no Rust and
# no network. `bash gpu/check.sh FOLDER`: FOLDER holds ignis-*.whl and the test binary `card`.
set -euo pipefail
folder=${1:?the folder that holds the wheel and the tests}
shift
site=$(mktemp -d)
python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$folder"/*.whl
export PYTHONPATH="$site" PYTHONUNBUFFERED=1
# NVRTC from the wheel, where there is one; the system's otherwise.
nvrtc=$(python3 - <<'PY'
import glob, sys
found = [p for base in sys.path for p in glob.glob(f"{base}/nvidia/*/lib/libnvrtc.so.1[0-9]")]
print(found[0] if found else "")
PY
)
if [ -n "$nvrtc" ]; then export CARD_NVRTC="$nvrtc"; fi
export CARD_KERNELS=/tmp/ignis-kernels
if [ -x "$folder/card" ]; then
    "$folder/card" --ignored --test-threads=1 --nocapture
fi
python3 "$(dirname "$0")/check.py" ${nvrtc:+--nvrtc "$nvrtc"} --kernels "$CARD_KERNELS" "$@"
