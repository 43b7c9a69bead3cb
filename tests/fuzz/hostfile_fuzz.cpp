// Hosts that agents are to be started on, as a file has them and as --hosts does: within their limits, or refused in
// one line.
#include <set>

#include "launcher/core/scheduler/hostfile.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/names.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

void check(const Result<std::vector<Host>>& hosts) {
  if (!hosts) {
    fuzz::require(hosts.error().context.find_first_of("\n\x1b") == std::string::npos);
    return;
  }
  fuzz::require(!hosts->empty() && hosts->size() <= hosts_max);
  std::set<std::string> names;
  for (const Host& host : *hosts) {
    fuzz::require(!host.name.starts_with('-') && why_no_name(host.name).empty());
    fuzz::require(names.insert(host.name).second);
    fuzz::require(!host.slots || (*host.slots >= 1 && *host.slots <= local_workers_max));
    fuzz::require(host.address.empty() || why_no_name(host.address).empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  check(parse_hostfile(text, "f"));
  check(parse_hosts(text));
  return 0;
}
