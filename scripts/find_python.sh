#!/usr/bin/env bash
# Print the path of a Python 3.11-3.13 interpreter, or say in one sentence that there is none.
# $PYTHON, if set, is the only candidate: a wish is not replaced by something else in silence.
set -u

fits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
    if fits "$PYTHON"; then
        command -v "$PYTHON"
        exit 0
    fi
    echo "PYTHON=$PYTHON is not a working Python 3.11, 3.12 or 3.13." >&2
    exit 1
fi

# The pyenv folders are asked directly: its shims exist for versions that are not switched on.
for candidate in python3 python3.13 python3.12 python3.11 python \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[123].*/bin/python; do
    if fits "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
done
echo "Headrace needs Python 3.11, 3.12 or 3.13 and found none: install one, or name it with PYTHON=/path/to/python3." >&2
exit 1
