#!/bin/bash
# Products and look-ups with weights in host memory on this machine's GPU:
#   bench/direct.sh [FOLDER with bench-direct] [JSON-FILE]      (default build/bin, no file)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

"${1:-build/bin}/bench-direct" ${2:+--json "$2"}
