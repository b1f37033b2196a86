#!/usr/bin/env bash
# make_env.sh DIR: make the environment of tests/vllm from nothing; instant when it is there.
# PYTHON names the interpreter to make it with (3.10 to 3.12).
set -euo pipefail

dir=${1:?usage: make_env.sh DIR}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/requirements.txt
key=$(sha256sum "$requirements" | cut -c1-16)
stamp=$dir/.ready-$key

[ -e "$stamp" ] && [ -x "$dir/bin/python" ] && exit 0

fits() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' \
    >/dev/null 2>&1
}

python=
for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.10 python3; do
  if fits "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
  echo "the vLLM environment needs Python 3.10 to 3.12 with venv: name one with PYTHON=..." >&2
  exit 1
fi

mkdir -p "$dir"
exec 9>"${dir%/}.lock"
flock 9  # a second caller waits, and then finds the stamp
[ -e "$stamp" ] && exit 0

echo "making the vLLM environment in $dir with $python (about 8 GB, some minutes)"
"$dir/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$requirements"
"$dir/bin/python" - <<'CHECK'
import importlib.util
import torch
for name in ("vllm", "speculators", "transformers"):
    assert importlib.util.find_spec(name), name
assert torch.ones(2).sum() == 2
CHECK
rm -f "$dir"/.ready-*
touch "$stamp"
