#pragma once

#include <cstddef>
#include <vector>

namespace torchup {

/// A directed graph: the arrows of node n lead to `to[first[n]]` … `to[first[n + 1] - 1]`. `first` has one entry more
/// than there are nodes.
struct Arrows {
  std::vector<std::size_t> first = {0};
  std::vector<std::size_t> to = {};

  void end_node() { first.push_back(to.size()); }
  [[nodiscard]] std::size_t nodes() const { return first.size() - 1; }
};

/// For each node whether it stands in a closed circle: at least two nodes, each of which leads to each other, and none
/// of which leads out. In time and memory of the graph's size, without recursion.
/// Source: Tarjan, Depth-first search and linear graph algorithms, 1972.
[[nodiscard]] std::vector<bool> in_closed_circle(const Arrows& arrows);

}  // namespace torchup
