#!/bin/bash
# Our kernels beside PyTorch's on this machine's GPU, one after the other:
#   bench/ops.sh [FOLDER with bench-ops]        (default build/bin)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

"${1:-build/bin}/bench-ops"
python3 bench/ops.py
