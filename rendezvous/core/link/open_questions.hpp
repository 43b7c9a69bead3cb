#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/base/types.hpp"

namespace torchup {

/// Of one process, in one job: more than that are refused at once, whoever asks.
inline constexpr std::size_t open_questions_max = 64;
/// Then an answer is not awaited any more.
inline constexpr Duration answer_wait_max = std::chrono::seconds{15};

/// Questions (Ask) that were sent to others and are not answered. `Whom` names those, `Asker` what waits for the
/// answer. Pure.
template <class Whom, class Asker>
class OpenQuestions {
 public:
  /// The number of a question that is sent now; nothing: too many are open.
  [[nodiscard]] std::optional<std::uint64_t> ask(Whom whom, Asker asker, TimePoint now) {
    if (open_.size() >= open_questions_max) return {};
    open_.emplace(next_, Question{std::move(whom), std::move(asker), now + answer_wait_max});
    return next_++;
  }
  /// Who waits for that answer, which has come; nothing: nobody, or another was asked.
  [[nodiscard]] std::optional<Asker> answered(const Whom& by, std::uint64_t number) {
    const auto found = open_.find(number);
    if (found == open_.end() || found->second.whom != by) return {};
    return std::move(open_.extract(found).mapped().asker);
  }
  /// Who waits in vain: whoever was asked is gone.
  [[nodiscard]] std::vector<Asker> gone(const Whom& whom) {
    return take_if([&](const Question& question) { return question.whom == whom; });
  }
  /// The same: the time is over.
  [[nodiscard]] std::vector<Asker> overdue(TimePoint now) {
    return take_if([&](const Question& question) { return question.until <= now; });
  }
  /// When somebody is overdue; nothing: nobody waits.
  [[nodiscard]] std::optional<TimePoint> deadline() const {
    return open_.empty() ? std::nullopt : std::optional{open_.begin()->second.until};
  }
  [[nodiscard]] std::size_t size() const { return open_.size(); }

 private:
  struct Question {
    Whom whom;
    Asker asker;
    TimePoint until{};
  };
  [[nodiscard]] std::vector<Asker> take_if(const auto& holds) {
    std::vector<Asker> taken;
    for (auto at = open_.begin(); at != open_.end();) {
      if (!holds(at->second)) {
        ++at;
        continue;
      }
      taken.push_back(std::move(at->second.asker));
      at = open_.erase(at);
    }
    return taken;
  }

  std::map<std::uint64_t, Question> open_;  ///< by number, the oldest first
  std::uint64_t next_ = 1;
};

}  // namespace torchup
