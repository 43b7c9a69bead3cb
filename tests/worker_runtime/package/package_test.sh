#!/usr/bin/env bash
# torchup as a stranger uses it: installed and found by find_package, refused with another torch, or fetched as sources.
# Usage: package_test.sh SOURCE_DIR BUILD_DIR TORCH_DIR TORCH_VERSION
set -euo pipefail
source=$1 build=$2 torch=$3 version=$4

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "package: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$folder/prefix" >"$folder/install.log" || { cat "$folder/install.log"; fail "the install failed"; }
mv "$folder/prefix" "$folder/moved" # an install can be moved

# README's C++ programs, as they are printed there.
mkdir "$folder/readme"
awk -v folder="$folder/readme" '/^```cpp$/ { ++number; inside = 1; next } /^```$/ { inside = 0 }
  inside { print >(folder "/program" number ".cpp") }' "$source/README.md"
for number in 1 2; do
  grep -q 'int main' "$folder/readme/program$number.cpp" || fail "README has no C++ program $number"
done
cat >"$folder/readme/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(readme LANGUAGES CXX)
find_package(torchup REQUIRED)
foreach(number IN ITEMS 1 2)
  add_executable(program\${number} program\${number}.cpp)
  target_link_libraries(program\${number} PRIVATE torchup::worker_runtime)
endforeach()
EOF
cmake -G Ninja -S "$folder/readme" -B "$folder/readme/build" -DCMAKE_PREFIX_PATH="$folder/moved" >"$folder/log" 2>&1 ||
  { cat "$folder/log"; fail "README's programs do not configure"; }
cmake --build "$folder/readme/build" >"$folder/log" 2>&1 || { tail -n 30 "$folder/log"; fail "README's programs do not build"; }
for number in 1 2; do
  (cd "$folder" && "readme/build/program$number") >"$folder/log" 2>&1 ||
    { cat "$folder/log"; fail "README's program $number does not run"; }
done

for example in all_reduce fashion_mnist; do
  cmake -G Ninja -S "$source/examples/$example" -B "$folder/$example" -DCMAKE_PREFIX_PATH="$folder/moved" \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_UNITY_BUILD=ON >"$folder/log" 2>&1 || { cat "$folder/log"; fail "$example does not configure against the install"; }
  cmake --build "$folder/$example" >"$folder/log" 2>&1 || { tail -n 30 "$folder/log"; fail "$example does not build against the install"; }
  "$folder/$example/$example" --help >"$folder/log" 2>&1 || { cat "$folder/log"; fail "$example does not run"; }
done

"$folder/all_reduce/all_reduce" >"$folder/log" 2>&1 || { cat "$folder/log"; fail "all_reduce does not run alone"; }

# A package that can be done without: nothing stops, no variable of the caller is touched, and the reason can be asked for.
mkdir "$folder/optional"
cat >"$folder/optional/CMakeLists.txt" <<'EOF'
cmake_minimum_required(VERSION 3.25)
project(optional LANGUAGES CXX)
set(TORCHUP_CUDA "the caller's")
function(values result)
  get_cmake_property(names VARIABLES)
  list(FILTER names EXCLUDE REGEX "^(torchup_|LibTorch_|ARG|names$|name$|all$|before$|after$|result$)")
  set(all "")
  foreach(name IN LISTS names)
    string(APPEND all "${name}=[${${name}}]\n")
  endforeach()
  set(${result} "${all}" PARENT_SCOPE)
endfunction()
values(before)
find_package(torchup QUIET)
values(after)
if(NOT before STREQUAL after)
  message(FATAL_ERROR "find_package(torchup) changed the caller's variables:\n${before}\nand then\n${after}")
endif()
message(STATUS "found: ${torchup_FOUND}, ${torchup_NOT_FOUND_MESSAGE}")
EOF
for torch_dir in "$folder/nowhere" "$torch"; do
  rm -rf "$folder/optional/build"
  cmake -G Ninja -S "$folder/optional" -B "$folder/optional/build" -DCMAKE_PREFIX_PATH="$folder/moved" \
    -DTORCHUP_TORCH_DIR="$torch_dir" >"$folder/log" 2>&1 ||
    { cat "$folder/log"; fail "a package that can be done without stops the configuration"; }
  wanted='found: 1, '
  [[ $torch_dir == "$torch" ]] || wanted='found: 0, No PyTorch found'
  grep -q "$wanted" "$folder/log" || { cat "$folder/log"; fail "expected: $wanted"; }
done

# Another torch: the same files under another version.
mkdir -p "$folder/other/torch"
ln -s "$torch/lib" "$torch/include" "$folder/other/torch/"
ln -s "$(dirname "$torch")/nvidia" "$folder/other/nvidia"
sed "s/^__version__ = .*/__version__ = '2.14.9+other'/" "$torch/version.py" >"$folder/other/torch/version.py"
if cmake -G Ninja -S "$source/examples/all_reduce" -B "$folder/refused" -DCMAKE_PREFIX_PATH="$folder/moved" \
  -DTORCHUP_TORCH_DIR="$folder/other/torch" >"$folder/log" 2>&1; then
  fail "another torch was accepted"
fi
for word in "$version" 2.14.9+other; do
  tr -s ' \n' ' ' <"$folder/log" | grep -qF -- "$word" || { cat "$folder/log"; fail "the refusal does not name $word"; }
done

# As sources: configured only, a build would be the whole library once more.
mkdir "$folder/sources"
cat >"$folder/sources/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(stranger LANGUAGES CXX)
include(FetchContent)
FetchContent_Declare(torchup SOURCE_DIR $source)
FetchContent_MakeAvailable(torchup)
file(WRITE \${CMAKE_CURRENT_BINARY_DIR}/main.cpp "int main() {}")
add_executable(stranger \${CMAKE_CURRENT_BINARY_DIR}/main.cpp)
target_link_libraries(stranger PRIVATE torchup::worker_runtime)
EOF
cmake -G Ninja -S "$folder/sources" -B "$folder/fetched" -DTORCHUP_TORCH_DIR="$torch" >"$folder/log" 2>&1 ||
  { cat "$folder/log"; fail "torchup does not configure inside another project"; }
cmake --install "$folder/fetched" --prefix "$folder/nothing" >"$folder/log" 2>&1 || { cat "$folder/log"; fail "inside another project there is something to install"; }
[[ ! -e $folder/nothing ]] || fail "inside another project torchup installs $(ls -R "$folder/nothing")"
ninja -C "$folder/fetched" -n all >"$folder/log"
if grep -E '/(fashion_mnist|torchup|torchupd)$' "$folder/log"; then fail "inside another project the programs above are built"; fi
echo "package: ok"
