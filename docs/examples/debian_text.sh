#!/usr/bin/env bash
# Makes text to pretrain on from packages of Debian 12: documentation of 27 packages and the core of Linux's
# sources, as JSON lines for ./prepare. It downloads 420 MB, takes 3 GB of disk for a while, and some five
# minutes. Needs perl.
#   docs/examples/debian_text.sh OUTPUT [MEGABYTES]
# OUTPUT gets train.jsonl and validation.jsonl, a document a line, and packages.txt, which has the versions.
# MEGABYTES: train.jsonl ends before it has more than this, by default 215. All of the text is 251.
# - HTML becomes text: no markup, scripts, styles, navigation. POD, reStructuredText, C and others stay.
# - A paragraph of 60 letters or more that occurred before is left out, then each document below 500 letters.
# - The order, and which documents are held out (1 in 100), follow from a checksum of each file's name.
set -euo pipefail
[[ $# -ge 1 ]] || { sed -n '2,/^set/{/^set/d;s/^# \?//;p}' "$0" && exit 2; }
mkdir -p "$1"
out=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
packages=(
  linux-doc-6.1 python3.11-doc perl-doc git-doc postgresql-doc-15 rust-doc glibc-doc debian-handbook
  debian-reference-en libreoffice-help-en-us gimp-help-en dict-gcide dict-foldoc anarchism bible-kjv-text
  python-scipy-doc python-django-doc python-sqlalchemy-doc vim-doc zsh-doc nodejs-doc apache2-doc bind9-doc
  exim4-doc-html postgis-doc openjdk-17-doc erlang-doc linux-source-6.1
)
work=$(mktemp -d "$out/packages.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
for package in "${packages[@]}"; do
  apt-get download -qq -o APT::Sandbox::User=root "$package"
done
for file in *.deb; do
  echo "$(dpkg-deb -f "$file" Package) $(dpkg-deb -f "$file" Version)" >>packages.txt
  dpkg-deb -x "$file" root
  rm "$file"
done
mv packages.txt "$out/packages.txt"
parts=(block crypto init ipc kernel lib mm rust scripts security)
tar -xf root/usr/src/linux-source-6.1.tar.xz -C root/usr/src "${parts[@]/#/linux-source-6.1/}"
find root -type f -size +1k -regextype posix-extended \
  -regex '.*\.((html|txt)(\.gz)?|rst|pod|md|dict\.dz|rawtxt\.gz|[chS]|py|sh|rs)' |
  sed 's,^root/,,' | LC_ALL=C sort >files.txt
perl "$here/debian_text.pl" root "$out" "${2:-215}" <files.txt
