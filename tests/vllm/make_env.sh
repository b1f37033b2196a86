#!/usr/bin/env bash
# make_env.sh DIR...: make the environments of the vLLM tests from nothing; instant where they are.
# A folder's name says which: vllm-V is a virtual environment with requirements-V.txt;
# speculators-V is a folder of packages that stands on the path of the environment beside it.
# PYTHON names the interpreter to make them with (3.11 or 3.12).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pip=(-m pip --disable-pip-version-check install --quiet --no-deps --no-compile)

fits() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' \
    >/dev/null 2>&1
}

interpreter() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3; do
    if fits "$candidate"; then echo "$candidate"; return; fi
  done
  echo "the vLLM environments need Python 3.11 or 3.12 with venv: name one with PYTHON=..." >&2
  return 1
}

make_vllm() {
  local dir=$1 requirements=$2 python
  python=$(interpreter)
  echo "making $dir with $python (3 to 8 GB, some minutes)"
  "$dir/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear "$dir"
  "$dir/bin/python" "${pip[@]}" -r "$requirements"
  "$dir/bin/python" - <<'CHECK'
import importlib.util
import torch
for name in ("vllm", "transformers"):
    assert importlib.util.find_spec(name), name
assert torch.ones(2).sum() == 2
CHECK
}

make_folder() {
  local dir=$1 requirements=$2 host
  case $dir in
    *-0.4) host=vllm-0.16 ;;
    *) host=vllm-0.32 ;;
  esac
  echo "making $dir for $host"
  find "$dir" -mindepth 1 -delete  # pip does not replace what stands in a target folder
  "$(dirname "$dir")/$host/bin/python" "${pip[@]}" --target "$dir" -r "$requirements"
}

make_one() (
  dir=${1%/}
  name=$(basename "$dir")
  requirements=$here/requirements-${name#vllm-}.txt
  stamp=$dir/.ready-$(sha256sum "$requirements" | cut -c1-16)
  [ -e "$stamp" ] && exit 0

  mkdir -p "$dir"
  exec 9>"$dir.lock"
  flock 9  # a second caller waits, and then finds the stamp
  [ -e "$stamp" ] && exit 0
  case $name in
    vllm-*) make_vllm "$dir" "$requirements" ;;
    *) make_folder "$dir" "$requirements" ;;
  esac
  rm -f "$dir"/.ready-*
  touch "$stamp"
)

[ $# -gt 0 ] || { echo "usage: make_env.sh DIR..." >&2; exit 2; }
for dir in "$@"; do make_one "$dir"; done
