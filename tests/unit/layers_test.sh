#!/usr/bin/env bash
# The layers that no link line can keep apart: core code reads no clock, opens nothing, logs nothing; launcher and
# worker_runtime do not know each other; rendezvous knows neither. Usage: layers_test.sh SOURCE_DIR
set -euo pipefail
cd "$1"

failed=0
forbid() { # forbid WHY PATTERN FOLDER...
  local why=$1 pattern=$2 folder
  shift 2
  for folder in "$@"; do
    [[ -n $(find "$folder" -name '*.[ch]pp' -print -quit) ]] || { echo "layers: $folder has no sources: is the list still right?"; failed=1; }
  done
  if grep -rnE --include='*.[ch]pp' "$pattern" "$@"; then
    echo "layers: the lines above are against the rule: $why"
    failed=1
  fi
}

forbid 'core code is pure: no sockets, threads, logs, command lines, LibTorch' \
  '#include [<"](boost/(asio|beast|process)|CLI/|torch/|c10/|ATen/|spdlog/|thread|mutex|atomic|iostream|fstream|filesystem|unistd|sys/|fcntl|poll|random)' \
  rendezvous/base rendezvous/core launcher/core
forbid 'core code gets time, environment and chance as arguments' '_clock::now|getenv *\(|random_device|system *\(' \
  rendezvous/base rendezvous/core launcher/core
forbid 'the launcher builds without LibTorch' '#include [<"](torch|c10|ATen)' rendezvous launcher
forbid 'rendezvous stands below launcher and worker_runtime' '#include [<"](launcher|worker_runtime|torchup)/' rendezvous
forbid 'launcher and worker_runtime stand side by side' '#include [<"](worker_runtime|torchup)/' launcher
forbid 'launcher and worker_runtime stand side by side' '#include [<"]launcher/' worker_runtime
# A room includes only those that stand before it in its house.
house() { # house FOLDER ROOM...
  local folder=$1 room i above
  shift
  local rooms=("$@")
  for room in "$folder"/*/; do
    room=$(basename "$room")
    [[ $room == include || " ${rooms[*]} " == *" $room "* ]] || { echo "layers: $folder/$room has no place in the order of rooms"; failed=1; }
  done
  [[ -z $(find "$folder" -maxdepth 1 -name '*.[ch]pp') ]] || { echo "layers: the sources of $folder live in rooms"; failed=1; }
  for ((i = 0; i < ${#rooms[@]} - 1; i++)); do
    above=$(IFS='|'; echo "${rooms[*]:i+1}")
    forbid "$folder/${rooms[i]} stands below $above" "#include [<\"]$folder/($above)/" "$folder/${rooms[i]}"
  done
}
house rendezvous/core text store etcd seat port link diagnosis membership round torchrun_wire torchrun ops
house rendezvous/net io etcd store ops coordinator daemon agent
house launcher/core text machine rehearsal options scheduler fan_out plan record diagnosis agent ops
house launcher/os io machine output worker diagnosis rehearsal ops agent fan_out
house worker_runtime format place store group ddp data toolkit state worker elastic
forbid "strangers' files are read without LibTorch" '#include [<"](torch|c10|ATen)/' worker_runtime/format
# At a store of ours one machine decides for all agents of ours, and the store's owner alone writes what they are there.
forbid "mixed jobs take no part in a torchrun agent's store" '#include "rendezvous/core/torchrun/torchrun_(peer|board|outsider)\.' \
  rendezvous/core/torchrun/mixed_*
# CTest splits a name at a semicolon, and Catch2 takes one that begins with a dash for an option: such a test never runs.
if grep -rnE --include='*.cpp' 'TEST_CASE\("(-|[^"]*;)' tests; then
  echo "layers: the test cases above have names with which CTest cannot run them"
  failed=1
fi
exit $failed
