#!/bin/bash
# Runs the GPU tests of a bundle (scripts/bundle DIR --tests) on this machine:
#   tests/gpu/run.sh DIR [fast|all|sanitize]
# fast: kernels and device; all: also the reference fixtures and random plans; sanitize: kernels and
# device under compute-sanitizer's memcheck, kernels under racecheck. CUDA's libraries are looked
# for in the toolkit's folder and in PyTorch's. Exit code 0 when everything passed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bundle=$(realpath "${1:?a bundle}")
what=${2:-all}

libraries=$bundle/lib:/usr/local/cuda/lib64
wheels=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null)
for folder in "$wheels"/*/lib; do
    [ -d "$folder" ] && libraries+=:$folder
done
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export MEMFERRY_CUDA_MODULE=$bundle/lib/memferry-cuda.so MEMFERRY_SOURCE_DIR=$PWD
export OPENBLAS_NUM_THREADS=1

failed=0
run() { # NAME COMMAND...
    local name=$1 start=$SECONDS code=0
    shift
    timeout 200 "$@" >"${OUT:-/tmp}/$name.log" 2>&1 || code=$?
    if [ "$code" -ne 0 ]; then
        failed=1
        grep -vE '^\[ +(OK|RUN)' "${OUT:-/tmp}/$name.log" | tail -40
    fi
    echo "$name: exit code $code, $((SECONDS - start)) s, passed:" \
        "$(grep -c '^\[ *OK' "${OUT:-/tmp}/$name.log")"
}

case $what in
sanitize)
    for name in device kernels; do
        run "memcheck_$name" compute-sanitizer --tool memcheck --error-exitcode 9 \
            "$bundle/tests/gpu_cuda_$name"
    done
    # racecheck does not follow mbarriers that copies complete: it reports cuBLAS's kernels
    # (nvjet) and our Hopper attention alike, whose waits and arrivals were read instead.
    run racecheck_kernels compute-sanitizer --tool racecheck "$bundle/tests/gpu_cuda_kernels"
    if grep 'Race reported' "${OUT:-/tmp}/racecheck_kernels.log" |
        grep -vE 'nvjet_|mf_flash::'; then
        failed=1
    fi
    ;;
*)
    run cuda_device "$bundle/tests/gpu_cuda_device"
    run cuda_trace "$bundle/tests/gpu_cuda_trace"
    run cuda_kernels "$bundle/tests/gpu_cuda_kernels"
    run cuda_direct "$bundle/tests/gpu_cuda_direct"
    grep -hE 'worst differences|in place' "${OUT:-/tmp}/cuda_direct.log"
    if [ "$what" = all ]; then
        export MEMFERRY_TEST_DEVICE=cuda
        run cuda_reference "$bundle/tests/oracle_reference"
        # Bits where all plans use the same matrix kernels, bounds where direct ones take part.
        MEMFERRY_DIRECT=plain run cuda_plans "$bundle/tests/exact_plans"
        run cuda_plans_direct "$bundle/tests/exact_plans"
        grep -hE 'logits|10 steps' "${OUT:-/tmp}/cuda_reference.log"
    fi
    ;;
esac
exit $failed
