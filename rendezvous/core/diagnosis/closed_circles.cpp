#include "rendezvous/core/diagnosis/closed_circles.hpp"

#include <algorithm>

namespace torchup {
namespace {

constexpr std::size_t not_visited = static_cast<std::size_t>(-1);

class Search {
 public:
  explicit Search(const Arrows& arrows)
      : arrows_{arrows}, order_(arrows.nodes(), not_visited), lowest_(arrows.nodes()), on_path_(arrows.nodes()),
        in_circle_(arrows.nodes()), leads_out_(arrows.nodes()) {}

  std::vector<bool> run() {
    for (std::size_t node = 0; node < arrows_.nodes(); ++node) {
      if (order_[node] == not_visited) search_from(node);
    }
    return std::move(in_circle_);
  }

 private:
  struct Step {
    std::size_t node;
    std::size_t next;  ///< arrow to follow
  };

  void enter(std::size_t node) {
    order_[node] = lowest_[node] = visited_++;
    on_path_[node] = true;
    path_.push_back(node);
    steps_.push_back({node, arrows_.first[node]});
  }

  void search_from(std::size_t start) {
    enter(start);
    while (!steps_.empty()) {
      const std::size_t node = steps_.back().node;
      if (steps_.back().next < arrows_.first[node + 1]) {
        follow(node, arrows_.to[steps_.back().next++]);
      } else {
        leave(node);
      }
    }
  }

  void follow(std::size_t node, std::size_t target) {
    if (order_[target] == not_visited) {
      enter(target);
    } else if (on_path_[target]) {
      lowest_[node] = std::min(lowest_[node], order_[target]);
    } else {
      leads_out_[node] = true;  // to what has been left for good
    }
  }

  void leave(std::size_t node) {
    steps_.pop_back();
    bool leads_out = false;
    if (lowest_[node] == order_[node]) {
      const auto begin = std::find(path_.rbegin(), path_.rend(), node).base() - 1;
      leads_out = std::any_of(begin, path_.end(), [&](std::size_t member) { return leads_out_[member]; });
      const bool circle = !leads_out && path_.end() - begin > 1;
      for (auto member = begin; member != path_.end(); ++member) {
        on_path_[*member] = false;
        in_circle_[*member] = circle;
      }
      path_.erase(begin, path_.end());
      leads_out = true;  // whoever came here came from another component
    }
    if (steps_.empty()) return;
    const std::size_t from = steps_.back().node;
    lowest_[from] = std::min(lowest_[from], lowest_[node]);
    if (leads_out) leads_out_[from] = true;
  }

  const Arrows& arrows_;
  std::vector<std::size_t> order_, lowest_;
  std::vector<bool> on_path_, in_circle_, leads_out_;
  std::vector<std::size_t> path_;
  std::vector<Step> steps_;
  std::size_t visited_ = 0;
};

}  // namespace

std::vector<bool> in_closed_circle(const Arrows& arrows) { return Search{arrows}.run(); }

}  // namespace torchup
