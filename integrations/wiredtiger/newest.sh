#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# newest.sh FOLDER: compiles WiredTiger 11.3.1 in FOLDER, unless already done, and its Python module, in the environment
# FOLDER/python. The sources are those of the Python module on PyPI.
set -euo pipefail

readonly VERSION=11.3.1
folder=${1:?usage: newest.sh FOLDER}
mkdir -p "$folder"
cd "$folder"

if ! [ -d "wiredtiger-$VERSION" ]; then
	# pip runs the sources' build script, which needs cmake, ninja and SWIG; pip installs these itself.
	python3 -m pip download --no-deps --no-binary wiredtiger "wiredtiger==$VERSION"
	tar xzf "wiredtiger-$VERSION.tar.gz"
fi
if ! [ -e "wiredtiger-$VERSION/build/libwiredtiger.so" ]; then
	cmake -S "wiredtiger-$VERSION" -B "wiredtiger-$VERSION/build" -DCMAKE_BUILD_TYPE=Release -DENABLE_PYTHON=0 \
		-DENABLE_STATIC=0 -DENABLE_SHARED=1 -DHAVE_UNITTEST=0 -DENABLE_STRICT=0 -DHAVE_BUILTIN_EXTENSION_SNAPPY=1
	cmake --build "wiredtiger-$VERSION/build" --parallel 2 --target wiredtiger_shared
fi
if ! python/bin/python -c 'import wiredtiger' 2>/dev/null; then
	python3 -m venv python
	python/bin/pip install --quiet cmake ninja setuptools 'swig<4.3' wheel
	PATH=$PWD/python/bin:$PATH python/bin/pip install --quiet --no-build-isolation "wiredtiger-$VERSION.tar.gz"
fi
