#!/bin/bash
# Runs the GPU tests of a bundle (scripts/bundle DIR --tests) on this machine:
#   tests/gpu/run.sh DIR [fast|all|cudnn|jitter|counters|strategies|sanitize]
# fast: kernels and device; all: also the reference fixtures and random plans; cudnn: attention by
# cuDNN alone; jitter: each lane late alone; counters: bytes over the link by the GPU's counters;
# strategies: a model of several times the cap's size with every strategy, through the daemon (more
# arguments are those of tests/gpu/strategies.py); sanitize: kernels and device under
# compute-sanitizer's memcheck, kernels under racecheck. CUDA's libraries are looked for in the
# toolkit's folder and in PyTorch's. Exit code 0 when everything passed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bundle=$(realpath "${1:?a bundle}")
what=${2:-all}

libraries=$bundle/lib:/usr/local/cuda/lib64:/usr/local/cuda/extras/CUPTI/lib64
wheels=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null)
for folder in "$wheels"/*/lib; do
    [ -d "$folder" ] && libraries+=:$folder
done
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export MEMFERRY_CUDA_MODULE=$bundle/lib/memferry-cuda.so MEMFERRY_SOURCE_DIR=$PWD
export OPENBLAS_NUM_THREADS=1

failed=0
run() { # NAME COMMAND...; MAY_SKIP=yes: exit code 77 is no failure; LIMIT=SECONDS
    local name=$1 start=$SECONDS code=0
    shift
    timeout "${LIMIT:-200}" "$@" >"${OUT:-/tmp}/$name.log" 2>&1 || code=$?
    if [ "$code" -eq 77 ] && [ "${MAY_SKIP:-}" = yes ]; then
        grep -h '^skipped' "${OUT:-/tmp}/$name.log"
    elif [ "$code" -ne 0 ]; then
        failed=1
        grep -vE '^\[ +(OK|RUN)' "${OUT:-/tmp}/$name.log" | tail -40
    fi
    echo "$name: exit code $code, $((SECONDS - start)) s, passed:" \
        "$(grep -c '^\[ *OK' "${OUT:-/tmp}/$name.log")"
}

cudnn() {
    MAY_SKIP=yes run cudnn_graph "$bundle/tests/gpu_cudnn_graph"
    MAY_SKIP=yes run cuda_cudnn "$bundle/tests/gpu_cuda_cudnn"
    grep -hE '^(cudnn|auto): |heads of|statistics|own .* ms' "${OUT:-/tmp}/cuda_cudnn.log"
}

# racecheck of the kernels, a report of which fails. Tests whose calls launch products of cuBLAS are
# left out: told to exclude those (--kernel-name-exclude kns=nvjet), 2025.3 ends with "Internal
# Sanitizer Error: failed to handle a hardware exception"; not told, it reports them.
racecheck() { # NAME
    local test
    for test in embedding embedding_touched position norm rope elementwise attention \
        gradients_have_the_same_bits update_has_the_same_bits; do
        LIMIT=100 run "$1_$test" compute-sanitizer --tool racecheck --error-exitcode 9 \
            "$bundle/tests/gpu_cuda_kernels" "test_$test"
        if ! grep -q 'RACECHECK SUMMARY: 0 hazards' "${OUT:-/tmp}/$1_$test.log"; then
            failed=1
            grep -h 'Race reported' "${OUT:-/tmp}/$1_$test.log" | sed 's/+0x.*//' | sort | uniq -c
        fi
    done
}

case $what in
sanitize)
    for name in device kernels; do
        run "memcheck_$name" compute-sanitizer --tool memcheck --error-exitcode 9 \
            "$bundle/tests/gpu_cuda_$name"
    done
    # Our kernels for Hopper (attention, direct products) wait at mbarriers that bulk copies
    # complete. NVIDIA's release notes of compute-sanitizer correct false reports of that up to
    # 2026.3 ("when using mbarrier complete-tx operations"); CUDA 13.0 has 2025.3, which reports our
    # attention as it reports cuBLAS. So an older one looks at all kernels but those, with attention
    # for tensor cores and plain, and the waits of the others rest on reading: every thread that
    # wrote or read shared memory arrives itself, or its warp's first lane after __syncwarp.
    MEMFERRY_ATTENTION=tiles MEMFERRY_DIRECT=plain racecheck racecheck_tiles
    version=$(compute-sanitizer --version | grep -oE '20[0-9]{2}\.[0-9]+' | head -1)
    if [ "$(printf '%s\n' 2026.3 "$version" | sort -V | head -1)" = 2026.3 ]; then
        racecheck racecheck_hopper
    else
        echo "racecheck_hopper: not run, compute-sanitizer $version is older than 2026.3"
    fi
    ;;
cudnn)
    cudnn
    ;;
jitter)
    MEMFERRY_TEST_DEVICE=cuda run cuda_jitter "$bundle/tests/exact_plans" 'delays*'
    ;;
counters)
    run counters "$bundle/tests/bench-counters" ${OUT:+--json "$OUT/counters.json"}
    cat "${OUT:-/tmp}/counters.log"
    ;;
strategies)
    LIMIT=600 run strategies python3 tests/gpu/strategies.py --bin "$bundle/bin" "${@:3}"
    grep '^[|]' "${OUT:-/tmp}/strategies.log"
    grep 'training state' "${OUT:-/tmp}/strategies.log"
    ;;
*)
    run cuda_device "$bundle/tests/gpu_cuda_device"
    run cuda_trace "$bundle/tests/gpu_cuda_trace"
    run cuda_kernels "$bundle/tests/gpu_cuda_kernels"
    run cuda_direct "$bundle/tests/gpu_cuda_direct"
    grep -hE 'worst differences|in place' "${OUT:-/tmp}/cuda_direct.log"
    if [ "$what" = all ]; then
        # What other GPUs use: on Hopper the tests above do not reach it.
        MEMFERRY_ATTENTION=tiles run cuda_kernels_tiles "$bundle/tests/gpu_cuda_kernels"
        cudnn
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
