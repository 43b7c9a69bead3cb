#include "launcher/ctl/node_choice.hpp"

#include <fmt/format.h>

#include <vector>

#include "launcher/ctl/values.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {

Result<std::string> choose_node(const json& snapshot, std::string_view word) {
  const json* const nodes = member(snapshot, "nodes");
  if (!nodes || !nodes->is_object()) return fail(errc::bad_value, "the job has no nodes");
  if (nodes->contains(std::string{word})) return std::string{word};
  std::vector<std::string> of_host;
  for (const auto& [id, node] : nodes->items()) {
    const auto group_rank = integer_in(node, "group_rank");
    if (group_rank && fmt::format("{}", *group_rank) == word) return id;
    if (text_in(node, "host") == word) of_host.push_back(id);
  }
  if (of_host.size() == 1) return of_host.front();
  if (of_host.empty()) return fail(errc::bad_value, fmt::format("there is no node '{}'", printable_start(word)));
  for (std::string& id : of_host) id = printable_start(id);
  return fail(errc::bad_value,
              fmt::format("'{}' has several nodes; name one: {}", printable_start(word), join_names(of_host)));
}

}  // namespace torchup
