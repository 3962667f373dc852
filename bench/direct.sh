#!/bin/bash
# Products and look-ups with weights in host memory on this machine's GPU, then the direct kernel
# with each of its tiles:
#   bench/direct.sh [FOLDER with bench-direct] [JSON-FILE]      (default build/bin, no file)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

"${1:-build/bin}/bench-direct" ${2:+--json "$2"}
echo
"${1:-build/bin}/bench-direct_tiles" ${2:+--json "${2%.json}_tiles.json"}
