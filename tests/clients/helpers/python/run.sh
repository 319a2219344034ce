#!/usr/bin/env bash
# Builds the wheel of clients/python, installs it, and runs its tests with that.
#
#   run.sh LOCKGATE [NAME ...]     the proxy's binary, and words of the tests' names
#
# PYTHON names another interpreter, which has redis-py.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
uv=$root/target/uv/bin/uv
python=${PYTHON:-$root/tests/clients/.venv/bin/python}
for file in "$uv" "$python"; do
  [ -x "$file" ] || { echo "$file is missing: run \"scripts/setup.sh test\", which installs it" >&2; exit 1; }
done

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$uv" build --quiet --offline --wheel --no-create-gitignore --out-dir "$place" "$root/clients/python"
# Beside redis-py, which is there already.
"$uv" pip install --quiet --offline --no-deps --python "$python" --target "$place/installed" "$place"/*.whl
export PYTHONPATH="$place/installed" PYTHONDONTWRITEBYTECODE=1 TMPDIR="$place"
"$python" "$here/main.py" "$@"
