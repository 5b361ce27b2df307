#!/usr/bin/env bash
# Builds the documentation site: build/site/index.html, which a browser opens without a network or a server.
#
#   docs/build.sh            build and check; warnings and broken links are errors
#   docs/build.sh --serve    show the pages on http://127.0.0.1:8000 and follow changes
#
# It needs python3 with venv, and doxygen for the C and C++ reference; without doxygen the reference is a note. Python
# packages of docs/requirements.txt are installed into build/docs-venv.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

readonly venv=build/docs-venv
readonly stamp=$venv/requirements.txt
readonly reference=build/doxygen

prepare_python() {
  cmp -s docs/requirements.txt "$stamp" && return
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r docs/requirements.txt
  cp docs/requirements.txt "$stamp"
}

write_reference() {
  rm -rf "$reference"
  if command -v doxygen >/dev/null; then
    doxygen docs/doxygen/Doxyfile
  else
    echo "build.sh: doxygen is not installed: the C and C++ reference is left out" >&2
  fi
}

main() {
  case "${1-}" in
    "" | --serve) ;;
    *) echo "usage: docs/build.sh [--serve]" >&2; exit 2 ;;
  esac
  prepare_python
  write_reference
  export PYTHONDONTWRITEBYTECODE=1 NO_MKDOCS_2_WARNING=1
  if [[ ${1-} == --serve ]]; then
    exec "$venv/bin/mkdocs" serve --strict
  fi
  "$venv/bin/mkdocs" build --strict --quiet
  python3 -B docs/site/check_links.py build/site
  echo "build/site/index.html"
}

main "$@"
