#!/usr/bin/env bash
# Run one fault on real GPUs under Nsight Systems, export what it recorded, and score it.
#
#   examples/gpu/capture_nsys.sh FAULT [EXECUTOR [RANKS [DIR]]]     [nccl, 8, gpu-nsys]
#
# The window of the recording is that of the run with the fault: the program opens and closes it by cudaProfilerStart
# and cudaProfilerStop. Of single-gpu the export shows one process with a stream a rank: for your eyes, not for a verdict.
set -euo pipefail

FAULT=${1:?which fault?}
EXECUTOR=${2:-nccl}
RANKS=${3:-8}
DIR=${4:-gpu-nsys}
read -ra COMMAND <<<"${DPRANKDIAG:-dprankdiag}"

command -v nsys >/dev/null || { echo "nsys is not installed" >&2; exit 1; }
mkdir -p "$DIR"
nsys profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --capture-range=cudaProfilerApi --capture-range-end=stop \
    --wait=primary --force-overwrite=true -o "$DIR/$FAULT" \
    "${COMMAND[@]}" harness run --executor "$EXECUTOR" --ranks "$RANKS" --fault "$FAULT" --format nsys -o "$DIR"
nsys export --type=sqlite --force-overwrite=true -o "$DIR/$FAULT/recording/$FAULT.sqlite" "$DIR/$FAULT.nsys-rep"
"${COMMAND[@]}" harness score "$DIR"
