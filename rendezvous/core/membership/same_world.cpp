#include "rendezvous/core/membership/same_world.hpp"

#include <algorithm>
#include <map>

#include "rendezvous/core/text/wording.hpp"

namespace torchup {

std::string world_differences(std::span<const HostFacts> hosts) {
  // By name and value, the hosts that say so; names in their alphabetical order.
  std::map<std::string, std::map<std::string, std::vector<std::string>>> said;
  for (const HostFacts& host : hosts) {
    for (const Fact& fact : *host.facts) said[fact.name][fact.value].push_back(*host.host);
  }
  std::string text;
  for (auto& [name, by_value] : said) {
    std::size_t stated = 0;
    for (const auto& [value, names] : by_value) stated += names.size();
    if (by_value.size() == 1 && stated == hosts.size()) continue;
    if (stated < hosts.size()) {
      for (const HostFacts& host : hosts) {
        const bool states = std::any_of(host.facts->begin(), host.facts->end(),
                                        [&name = name](const Fact& fact) { return fact.name == name; });
        if (!states) by_value["(none)"].push_back(*host.host);
      }
    }
    text += (text.empty() ? "" : " | ") + name + ": ";
    bool first = true;
    for (const auto& [value, names] : by_value) {
      text += (first ? "" : "; ") + value + " on " + join_names(names, 4);
      first = false;
    }
  }
  return text;
}

}  // namespace torchup
