#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/record/launch_event.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// How long the imports of --preload, or a program's way to its worker_main, may take.
inline constexpr Duration preload_limit = std::chrono::seconds{120};

/// Whether workers can be forked from the template process of --preload, over the whole job.
///
/// A template that does not come to serve is the last one: what kept it (a module that starts threads, a missing
/// package) keeps the next one too, unless a sweep has ended it. One that served and is lost has a successor, once in
/// a job.
///
/// Each call returns what is to be told of it, if anything.
class TemplateLife {
 public:
  /// `modules` that a Python imports, or what stands for a native program, which is loaded as far as to its
  /// worker_main.
  TemplateLife(std::vector<std::string> modules, bool python) : modules_{std::move(modules)}, python_{python} {}

  enum class State {
    absent,    ///< none is there, but one may be started
    loading,   ///< it imports or loads; workers wait for it
    serving,   ///< it can be forked
    given_up,  ///< for this job
  };
  [[nodiscard]] State state() const { return state_; }

  /// One is being started.
  void begins(TimePoint now);
  void has_pid(std::int64_t pid) { pid_ = pid; }
  /// It has said `text`. Words that it has no reason to say are those of a stranger: nobody answers, and nothing
  /// changes.
  [[nodiscard]] std::optional<EventBody> says(std::string_view text, TimePoint now);
  /// It has ended before its pid was known, and so perhaps by whoever ends what an attempt has left behind.
  void may_be_swept() { may_be_swept_ = true; }
  /// It has ended, with this exit code or by the signal of the negative number.
  [[nodiscard]] std::optional<EventBody> ended(int exit_code);
  /// It could not be started.
  [[nodiscard]] std::optional<EventBody> not_started(const std::string& error);
  /// That takes longer than preload_limit.
  [[nodiscard]] std::optional<EventBody> takes_too_long();
  /// It does not fork in time, and is about to be killed for it.
  void is_silent() { silent_ = true; }

 private:
  [[nodiscard]] std::optional<EventBody> give_up(std::string reason, std::string said = {});
  [[nodiscard]] std::string early_end(int exit_code) const;

  const std::vector<std::string> modules_;
  const bool python_;
  State state_ = State::absent;
  TimePoint begin_{};
  std::int64_t pid_ = 0;
  std::string importing_;  ///< the module that it said last
  bool silent_ = false;
  bool may_be_swept_ = false;
  bool lost_ = false;  ///< one of this job was
};

}  // namespace torchup
