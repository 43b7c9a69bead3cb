#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "../world.hpp"

namespace torchup::simulation {

/// TCP between the processes of nodes, any two of which may be cut off from each other.
class Wires {
 public:
  struct End {
    Process* process = nullptr;
    std::function<void(bool end_of_file)> on_closed = {};
    bool open = true;
    bool pumping = false;
    std::deque<std::function<void()>> sent = {};  ///< to the other end, in order
  };
  struct Line {
    std::uint64_t number = 0;  ///< by which lines are in order: addresses would make histories differ
    std::size_t nodes[2] = {0, 0};
    End ends[2] = {};
  };
  using LinePtr = std::shared_ptr<Line>;

  Wires(World& world, std::size_t nodes, Duration patience)
      : world_{world}, patience_{patience}, cut_(nodes, std::vector<bool>(nodes, false)) {}

  void set_cut(std::size_t a, std::size_t b, bool cut) {
    if (a != b) cut_[a][b] = cut_[b][a] = cut;
  }
  void heal() {
    for (auto& row : cut_) row.assign(row.size(), false);
  }
  [[nodiscard]] bool reaches(std::size_t a, std::size_t b) const { return !cut_[a][b]; }

  LinePtr connect(std::size_t from, Process& dialler, std::size_t to, Process& listener) {
    auto line = std::make_shared<Line>();
    line->number = ++count_;
    line->nodes[0] = from;
    line->nodes[1] = to;
    line->ends[0].process = &dialler;
    line->ends[1].process = &listener;
    lines_.push_back(line);
    return line;
  }

  void send(const LinePtr& line, int from, std::function<void()> read) {
    if (!line->ends[from].open) return;
    line->ends[from].sent.push_back(std::move(read));
    pump(line, from, world_.now());
  }

  /// In good order, or by a reset. Behind what was sent.
  void close(const LinePtr& line, int from, bool end_of_file) {
    if (!std::exchange(line->ends[from].open, false)) return;
    line->ends[from].on_closed = {};
    line->ends[from].sent.push_back([this, line, to = 1 - from, end_of_file] { lose(line, to, end_of_file); });
    pump(line, from, world_.now());
  }

  /// kill -9: the kernel says so to all others.
  void kill(Process& process) {
    for (const auto& weak : lines_) {
      const LinePtr line = weak.lock();
      if (!line) continue;
      for (int end : {0, 1}) {
        if (line->ends[end].process == &process) close(line, end, !world_.one_in(4));
      }
    }
    std::erase_if(lines_, [](const auto& weak) { return weak.expired(); });
  }

 private:
  void lose(const LinePtr& line, int end, bool end_of_file) {
    End& lost = line->ends[end];
    if (!std::exchange(lost.open, false)) return;
    const auto tell = std::exchange(lost.on_closed, {});
    if (tell) lost.process->run([tell, end_of_file] { tell(end_of_file); });
  }

  void pump(const LinePtr& line, int from, TimePoint since) {
    End& end = line->ends[from];
    if (end.pumping || end.sent.empty()) return;
    end.pumping = true;
    const bool passes = reaches(line->nodes[0], line->nodes[1]);
    world_.after(passes ? Duration{std::chrono::microseconds{world_.pick(50, 15'000)}} : Duration{200ms},
                 [this, line, from, since] {
                   End& self = line->ends[from];
                   self.pumping = false;
                   if (self.sent.empty()) return;
                   if (!reaches(line->nodes[0], line->nodes[1])) {
                     if (world_.now() < since + patience_) return pump(line, from, since);
                     self.sent.clear();
                     return lose(line, from, false);
                   }
                   auto what = std::move(self.sent.front());
                   self.sent.pop_front();
                   End& other = line->ends[1 - from];
                   if (other.open) {
                     what();
                   } else if (self.open) {
                     lose(line, from, false);  // a reset for what nobody reads
                   }
                   pump(line, from, world_.now());
                 });
  }

  World& world_;
  Duration patience_;
  std::vector<std::vector<bool>> cut_;
  std::vector<std::weak_ptr<Line>> lines_;
  std::uint64_t count_ = 0;
};

}  // namespace torchup::simulation
