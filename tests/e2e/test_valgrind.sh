#!/bin/bash
# Start, train, stop under valgrind: nothing is lost, nothing is read that was not written.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source_dir=${MEMFERRY_SOURCE_DIR:-$(dirname "$(dirname "$here")")}
bin=${MEMFERRY_BIN_DIR:-$source_dir/build/bin}
python=${MEMFERRY_PYTHON:-/usr/bin/python3}

if ! command -v valgrind >/dev/null; then
    echo "SKIPPED: valgrind is not installed"
    exit 77
fi
if [ "$(nm "$bin/memferryd" | grep -cE '__(asan|tsan)_init')" -gt 0 ]; then
    echo "SKIPPED: a sanitizer's build cannot run under valgrind"
    exit 77
fi

folder=$(mktemp -d /tmp/memferry-valgrind-XXXXXX)
daemon=
finish() {
    if [ -n "$daemon" ]; then
        kill -KILL "$daemon" 2>/dev/null || true
    fi
    if [ -z "${MF_TEST_KEEP:-}" ]; then
        rm -rf "$folder"
    fi
}
trap finish EXIT

# What the daemon is called with; OPENBLAS_CORETYPE because valgrind does not know AVX-512.
export OPENBLAS_CORETYPE=Haswell OPENBLAS_NUM_THREADS=1
options=(--device host --device-memory 64MiB --threads 1 --home "$folder/home"
    --socket "$folder/socket")

# start [valgrind ...]: the daemon in the background, once it serves.
start() {
    : >"$folder/daemon.log"
    "$@" "$bin/memferryd" "${options[@]}" 2>>"$folder/daemon.log" &
    daemon=$!
    for ((i = 0; i < 1200; i++)); do
        if grep -q 'ready:' "$folder/daemon.log" || ! kill -0 "$daemon" 2>/dev/null; then
            break
        fi
        sleep 0.1
    done
}

# The machine's rates are measured at the first start, which would take a minute under valgrind.
start
kill -TERM "$daemon"
wait "$daemon"
start valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite \
    --errors-for-leak-kinds=definite --log-file="$folder/valgrind.log"

code=0
PYTHONPATH=$here "$python" "$here/valgrind_client.py" "$folder/socket" "$folder" || code=$?
kill -TERM "$daemon" || true
ended=0
wait "$daemon" || ended=$?
daemon=
if [ "$code" -ne 0 ] || [ "$ended" -ne 0 ]; then
    echo "client: exit code $code; daemon under valgrind: exit code $ended (9 = errors found)"
    cat "$folder/daemon.log" "$folder/valgrind.log"
    exit 1
fi
echo "start, train, stop: no error, no definite leak"
