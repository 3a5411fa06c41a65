#!/usr/bin/env bash
# A foreign project, for real: build the wheel, install it into a fresh environment, and run a suite of one file in a folder of its own.
# Usage: wheel.sh EMPTY_FOLDER. PYTHON names the interpreter, TORCH_INDEX an index with CPU wheels of torch, where that is needed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$1

step() { printf '\n== %s\n' "$*"; }

step "build the wheel"
git -C "$root" archive HEAD | tar -x --one-top-level="$work/source"
"${PYTHON:-python3}" -m venv "$work/venv"
bin=$work/venv/bin
"$bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work/wheels" "$work/source"

step "install it"
"$bin/pip" install --quiet --disable-pip-version-check ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' "$root/constraints.txt")"
"$bin/pip" install --quiet --disable-pip-version-check --constraint "$root/constraints.txt" "$(echo "$work"/wheels/pd_handoff-*.whl)[test]"

step "the suite passes"
mkdir "$work/project"
cp "$here/suite.py" "$work/project/test_handoff.py"
cd "$work/project"
"$bin/pytest" -W error --integration -n 2

step "with a bad preset it fails, and says why"
code=0
"$bin/pytest" -W error --integration -n 2 --handoff-guards sglang-0.5.12 --handoff-transport tcp > ../bad.txt || code=$?
cat ../bad.txt
[ "$code" = 1 ] || { echo "expected exit 1, got $code"; exit 1; }
for said in 'NotValid: invalid: .*false-abort' 'a case of false-abort' 'aborted: MISMATCH' 'run folder: runs/test_slot_reuse/' 'repeat with: handoff stress '; do
    grep -q "$said" ../bad.txt || { echo "not said: $said"; exit 1; }
done
if grep -n 'site-packages/harness/' ../bad.txt; then echo "the harness's own stack shows"; exit 1; fi
echo "foreign: all steps passed"
