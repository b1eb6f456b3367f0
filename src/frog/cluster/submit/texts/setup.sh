#!/bin/bash
# Create .venv here, only from the wheels of this folder. This needs no network and may be repeated.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

PYTHON=${PYTHON:-python3}
NEEDED=@PYTHON@
# Packages of a module or the user must not hide missing wheels.
unset PYTHONPATH PYTHONHOME
export PYTHONNOUSERSITE=1

fail() {
  echo "setup.sh: $1" >&2
  echo "  try: $2" >&2
  exit 1
}

found=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])') ||
  fail "$PYTHON does not run" "PYTHON=/path/to/python$NEEDED ./setup.sh"
[[ $found == "$NEEDED" ]] ||
  fail "$PYTHON is Python $found; the wheels are for $NEEDED" "PYTHON=/path/to/python$NEEDED ./setup.sh"
sha256sum --check --quiet SHA256SUMS || fail "this bundle is incomplete" "copy it again"

# Remove an incomplete environment, which would look like a complete one.
trap 'rm -rf .venv' ERR INT TERM
rm -rf .venv
"$PYTHON" -m venv .venv
# Use no index and no settings of the user or the site: --isolated ignores PIP_* and the user's file, /dev/null replaces
# the site's file.
PIP_CONFIG_FILE=/dev/null .venv/bin/python -m pip --isolated --disable-pip-version-check \
  install --quiet --no-cache-dir --no-index --find-links wheels '@WANTED@'
.venv/bin/python -c 'import frog; print("frog", frog.__version__, "is in .venv")'
echo "next: sbatch job.sbatch"
