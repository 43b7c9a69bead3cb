// A list of hosts as Slurm writes it: expanded within its limits, or refused.
#include "rendezvous/core/text/hostlist.hpp"
#include "rendezvous/core/text/names.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto hosts = expand_hostlist({reinterpret_cast<const char*>(data), size});
  if (!hosts) return 0;
  fuzz::require(hosts->size() <= hostlist_hosts_max);
  std::string list;
  for (const std::string& host : *hosts) {
    fuzz::require(why_no_name(host).empty());
    list += (list.empty() ? "" : ",") + host;
  }
  if (hosts->size() > 1000) return 0;
  const auto again = expand_hostlist(list);  // names without brackets stand for themselves
  fuzz::require(again && *again == *hosts);
  return 0;
}
