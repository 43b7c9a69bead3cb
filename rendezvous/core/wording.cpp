#include "rendezvous/core/wording.hpp"

namespace torchup {

std::string seconds(Duration duration) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count() / 100;
  return std::to_string(tenths / 10) + (tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10)) + " s";
}

std::string nodes_wanted(const JobTerms& terms) {
  std::string text = std::to_string(terms.min_nodes);
  if (terms.max_nodes != terms.min_nodes) text += " to " + std::to_string(terms.max_nodes);
  return text + (terms.max_nodes == 1 ? " node" : " nodes");
}

std::string join_names(std::span<const std::string> names, std::size_t shown) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < shown; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > shown) text += " and " + std::to_string(names.size() - shown) + " more";
  return text;
}

}  // namespace torchup
