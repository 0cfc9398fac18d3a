#!/usr/bin/env bash
# Plant every fault on real GPUs, let dprankdiag judge what was recorded, and keep a table of what it said.
#
#   examples/gpu/check_gpu.sh [DIR]     results go to DIR [gpu-results]
#
# One GPU is enough: its streams are then the ranks. With four or more, a process a GPU meets by NCCL as well.
# DPRANKDIAG names the command [dprankdiag], DPRANKDIAG_TORCH_PYTHON an interpreter with torch and triton if it is
# another one, LIMIT_S the most seconds that each part may take [150]. See docs/gpu.md.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

OUT=${1:-gpu-results}
LIMIT_S=${LIMIT_S:-150}
read -ra COMMAND <<<"${DPRANKDIAG:-dprankdiag}"
PYTHON=${DPRANKDIAG_TORCH_PYTHON:-python3}
FAILED=0

mkdir -p "$OUT"
SECONDS=0

part() { # executor ranks: run all faults, judge them, and say how long both took
    local executor=$1 ranks=$2 begun=$SECONDS ran
    echo "## $executor, $ranks ranks"
    echo
    if ! timeout "$LIMIT_S" "${COMMAND[@]}" harness run --executor "$executor" --ranks "$ranks" \
        -o "$OUT/$executor" 2>"$OUT/$executor.log"; then
        FAILED=1
        echo "did not run: $(tail -n 1 "$OUT/$executor.log")"
        echo
        return
    fi
    ran=$((SECONDS - begun))
    echo "$(tail -n 1 "$OUT/$executor.log")"
    echo
    timeout "$LIMIT_S" python3 examples/gpu/make_table.py "$OUT/$executor" "${COMMAND[@]}" || FAILED=1
    echo
    echo "ran for $ran s, judged for $((SECONDS - begun - ran)) s"
    echo
    # Small enough to look at elsewhere, or to keep as an example.
    for name in healthy slow_gpu; do
        [ ! -d "$OUT/$executor/$name" ] || tar -czf "$OUT/$executor-$name.tar.gz" -C "$OUT/$executor" "$name"
    done
}

{
    echo "# Faults on real GPUs"
    echo
    nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader 2>/dev/null || echo "no nvidia-smi"
    "$PYTHON" -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)'
    echo
    gpus=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)')
    if [ "${gpus:-0}" = 0 ]; then
        echo "torch sees no GPU: nothing was run"
        FAILED=1
    else
        part single-gpu 4
        [ "$gpus" -lt 4 ] || part nccl "$((gpus < 8 ? 4 : 8))"
    fi
    echo "in all $SECONDS s"
} >"$OUT/results.md" 2>&1

cat "$OUT/results.md"
exit $FAILED
