#!/usr/bin/env bash
# Unpacks a Python that this Debian does not have, from a newer Debian, and prints its path. Nothing of the system changes.
#
#   packaging/newer_python.sh 3.14 FOLDER
#
# Needs apt, dpkg-deb and patchelf, and the archive that the system's own sources name.
set -euo pipefail
[[ $# -eq 2 && $1 =~ ^3\.[0-9]+$ ]] || { echo "usage: packaging/newer_python.sh 3.14 FOLDER" >&2; exit 2; }
readonly version=$1 suite=forky
mkdir -p "$2"
folder=$(readlink -f "$2")
readonly folder root=$folder/root lists=$folder/lists python=$folder/root/usr/bin/python$version
if [[ -e $folder/complete ]]; then
  echo "$python"
  exit
fi

archive=$(grep -rhoP '^(URIs:|deb( \[.*\])?)\s+\Khttps?://\S+/debian(?=/?(\s|$))' /etc/apt/sources.list* 2>/dev/null | head -1 || true)
readonly archive
mkdir -p "$lists/partial" "$folder/cache/archives/partial" "$root"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] ${archive:?no source of apt names the archive of Debian} $suite main" >"$folder/sources.list"
cat >"$folder/apt.conf" <<EOF
Dir::State::lists "$lists";
Dir::State::status "/dev/null";
Dir::Cache "$folder/cache";
Dir::Etc::sourcelist "$folder/sources.list";
Dir::Etc::sourceparts "/dev/null";
Acquire::Languages "none";
APT::Sandbox::User "root";
EOF
export APT_CONFIG=$folder/apt.conf
apt-get update -qq >&2
# With an empty list of installed packages, apt names all that Python needs, the C library among them.
mapfile -t packages < <(apt-get install --simulate --no-install-recommends "python$version-venv" | sed -n 's/^Inst \(\S*\) .*/\1/p')
[[ ${#packages[@]} -gt 0 ]]
(cd "$folder/cache/archives" && apt-get download -qq "${packages[@]}" >&2)
for package in "$folder"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$root"; done

# Its own C library: programs name the loader, and look for libraries here first.
loader=$(readlink -f "$root"/usr/lib64/ld-linux-x86-64.so.2)
libraries=$root/usr/lib/x86_64-linux-gnu
patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$python"
find "$root/usr/lib/python$version" -name '*.so' -exec patchelf --force-rpath --set-rpath "$libraries" {} +
sed -i "s|/usr/share/python-wheels|$root&|" "$root/usr/lib/python$version"/_sysconfigdata_*.py  # where ensurepip finds pip
"$python" -m venv "$folder/tried" >&2
rm -rf "$folder/tried"
rm -rf "$lists" "$folder/cache"
touch "$folder/complete"
echo "$python"
