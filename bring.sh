#!/usr/bin/env bash
# Bring your own GPU: from a bare CUDA image to one archive of measurements, in ten minutes. ./bring.sh [PARAMETERS.yml …]
set -euo pipefail
cd "$(dirname "$0")"
nvidia-smi --query-gpu=name,driver_version,compute_cap,power.limit --format=csv,noheader || {
  echo "nvidia-smi finds no GPU: rent one with compute capability 9.0 or newer, or give the container its GPUs"; exit 2; }

missing=()
command -v make >/dev/null || missing+=(make)
command -v git >/dev/null || missing+=(git)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
if [ "${#missing[@]}" -gt 0 ]; then
  as=(); [ "$(id -u)" = 0 ] || as=(sudo)
  "${as[@]}" apt-get update -qq
  "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)
make CUDA="$([ "${driver%%.*}" -ge 580 ] && echo cu13 || echo cu12)" install
.venv/bin/python -m labkernels doctor || true  # says what is missing; chapters that need it say so too

out=runs/bring-$(date -u +%Y%m%dT%H%M%SZ)
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1)
.venv/bin/python -m labkernels kernels --arch "sm_${capability/./}a" >/dev/null  # on all cores, before anything is timed
.venv/bin/python -m labkernels batch "$@" --out "$out" || [ $? = 1 ]  # a chapter that failed does not take the others' rows
echo "Your archive: $out/rows.tar.gz, and what came of each chapter: $out/summary.html"
